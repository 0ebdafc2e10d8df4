// The bot in Teams, with a card for each event; infra/functions answers for it.
param botName string
param hostName string
param clientId string
param identityId string

// The bot is the identity of the app: there is no secret to keep, and Teams calls the app.
resource bot 'Microsoft.BotService/botServices@2022-09-15' = {
  name: botName
  location: 'global'
  kind: 'azurebot'
  sku: {
    name: 'F0'
  }
  properties: {
    displayName: 'sebridge'
    endpoint: 'https://${hostName}/api/messages'
    msaAppId: clientId
    msaAppMSIResourceId: identityId
    msaAppTenantId: tenant().tenantId
    msaAppType: 'UserAssignedMSI'
    disableLocalAuth: true
  }
}

// No other channel: whoever holds the secret of a web chat says there who they are.
resource teams 'Microsoft.BotService/botServices/channels@2022-09-15' = {
  parent: bot
  name: 'MsTeamsChannel'
  location: 'global'
  properties: {
    channelName: 'MsTeamsChannel'
    properties: {
      isEnabled: true
      enableCalling: false
    }
  }
}
