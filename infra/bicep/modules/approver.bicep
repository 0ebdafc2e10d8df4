// The Functions app of infra/functions: its queues, what it may do, and where it runs.
param location string
param namespaceName string
param hostName string

// Not the bridges' own: these may not send approvals, and this may not tell of events.
param identityId string
param principalId string
param clientId string

param storageName string
param appName string
param approvers string
param voteRule string
param resourceApprovers string
param slackTeam string
param slackSigningSecretUri string
param buttonSecretUri string
param teamsConversation string
param teamsGroups string
param alwaysReady int

// Azure Service Bus Data Sender and Data Receiver, Storage Blob Data Owner.
var senderRole = subscriptionResourceId(
  'Microsoft.Authorization/roleDefinitions',
  '69a216fc-b8fb-44d8-bc22-1f3c2cd27a39'
)
var receiverRole = subscriptionResourceId(
  'Microsoft.Authorization/roleDefinitions',
  '4f6d3b9b-027b-4f4c-9142-0e5a2a2247e0'
)
var blobRole = subscriptionResourceId('Microsoft.Authorization/roleDefinitions', 'b7e6dc6d-f1e8-4753-8033-0f276bb0955b')

resource namespace 'Microsoft.ServiceBus/namespaces@2024-01-01' existing = {
  name: namespaceName
}

resource events 'Microsoft.ServiceBus/namespaces/topics@2024-01-01' existing = {
  parent: namespace
  name: 'scheduled-events'
}

resource approver 'Microsoft.ServiceBus/namespaces/topics/subscriptions@2024-01-01' existing = {
  parent: events
  name: 'approver'
}

resource approvals 'Microsoft.ServiceBus/namespaces/queues@2024-01-01' existing = {
  parent: namespace
  name: 'vm-approvals-sessions'
}

// A click is worth nothing once Slack has stopped taking answers to it.
resource clicks 'Microsoft.ServiceBus/namespaces/queues@2024-01-01' = {
  parent: namespace
  name: 'approver-clicks'
  properties: {
    maxDeliveryCount: 10
    lockDuration: 'PT1M'
    defaultMessageTimeToLive: 'PT30M'
    deadLetteringOnMessageExpiration: true
  }
}

// Its session states are the ballots; it never holds a message.
resource votes 'Microsoft.ServiceBus/namespaces/queues@2024-01-01' = {
  parent: namespace
  name: 'approver-votes'
  properties: {
    requiresSession: true
    maxDeliveryCount: 10
    lockDuration: 'PT1M'
  }
}

resource hearsEvents 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(approver.id, principalId, receiverRole)
  scope: approver
  properties: {
    principalId: principalId
    principalType: 'ServicePrincipal'
    roleDefinitionId: receiverRole
  }
}

resource keepsClicks 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(clicks.id, principalId, senderRole)
  scope: clicks
  properties: {
    principalId: principalId
    principalType: 'ServicePrincipal'
    roleDefinitionId: senderRole
  }
}

resource countsClicks 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(clicks.id, principalId, receiverRole)
  scope: clicks
  properties: {
    principalId: principalId
    principalType: 'ServicePrincipal'
    roleDefinitionId: receiverRole
  }
}

resource keepsVotes 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(votes.id, principalId, receiverRole)
  scope: votes
  properties: {
    principalId: principalId
    principalType: 'ServicePrincipal'
    roleDefinitionId: receiverRole
  }
}

resource sendsApprovals 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(approvals.id, principalId, senderRole)
  scope: approvals
  properties: {
    principalId: principalId
    principalType: 'ServicePrincipal'
    roleDefinitionId: senderRole
  }
}

// The host keeps its package, its function keys and its leases here.
resource storage 'Microsoft.Storage/storageAccounts@2023-05-01' = {
  // checkov:skip=CKV_AZURE_206: nothing in it that a deployment does not make anew
  // checkov:skip=CKV_AZURE_33: no queue is used
  // checkov:skip=CKV_AZURE_35: the host of this plan deploys from outside any network
  // checkov:skip=CKV_AZURE_43: a parameter, with its limits in main.bicep
  // checkov:skip=CKV_AZURE_59: as above; keys are off, so that only roles open it
  name: storageName
  location: location
  kind: 'StorageV2'
  sku: {
    name: 'Standard_LRS'
  }
  properties: {
    allowBlobPublicAccess: false
    allowSharedKeyAccess: false
    defaultToOAuthAuthentication: true
    minimumTlsVersion: 'TLS1_2'
    supportsHttpsTrafficOnly: true
  }
}

resource blobs 'Microsoft.Storage/storageAccounts/blobServices@2023-05-01' = {
  parent: storage
  name: 'default'
}

resource package 'Microsoft.Storage/storageAccounts/blobServices/containers@2023-05-01' = {
  parent: blobs
  name: 'package'
  properties: {
    publicAccess: 'None'
  }
}

resource ownsBlobs 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(storage.id, principalId, blobRole)
  scope: storage
  properties: {
    principalId: principalId
    principalType: 'ServicePrincipal'
    roleDefinitionId: blobRole
  }
}

resource plan 'Microsoft.Web/serverfarms@2024-04-01' = {
  // checkov:skip=CKV_AZURE_212: instances come with the load
  // checkov:skip=CKV_AZURE_225: Flex Consumption has no zones to choose here
  name: '${appName}-plan'
  location: location
  kind: 'functionapp'
  sku: {
    tier: 'FlexConsumption'
    name: 'FC1'
  }
  properties: {
    reserved: true
  }
}

var readyForSlack = [
  {
    name: 'http'
    instanceCount: alwaysReady
  }
]

resource app 'Microsoft.Web/sites@2024-04-01' = {
  // checkov:skip=CKV_AZURE_17: Slack has no client certificate
  // checkov:skip=CKV_AZURE_212: instances come with the load
  // checkov:skip=CKV_AZURE_213: a function app has no page to ask
  // checkov:skip=CKV_AZURE_222: Slack calls from the internet; its signature is checked
  name: appName
  location: location
  kind: 'functionapp,linux'
  identity: {
    type: 'UserAssigned'
    userAssignedIdentities: {
      '${identityId}': {}
    }
  }
  properties: {
    serverFarmId: plan.id
    httpsOnly: true
    keyVaultReferenceIdentity: identityId
    siteConfig: {
      minTlsVersion: '1.2'
      ftpsState: 'Disabled'
      http20Enabled: true
      appSettings: [
        {
          name: 'AzureWebJobsStorage__accountName'
          value: storage.name
        }
        {
          name: 'AzureWebJobsStorage__credential'
          value: 'managedidentity'
        }
        {
          name: 'AzureWebJobsStorage__clientId'
          value: clientId
        }
        {
          name: 'SERVICEBUS__fullyQualifiedNamespace'
          value: hostName
        }
        {
          name: 'SERVICEBUS__credential'
          value: 'managedidentity'
        }
        {
          name: 'SERVICEBUS__clientId'
          value: clientId
        }
        {
          name: 'EVENTS_TOPIC'
          value: events.name
        }
        {
          name: 'EVENTS_SUBSCRIPTION'
          value: approver.name
        }
        {
          name: 'CLICKS_QUEUE'
          value: clicks.name
        }
        {
          name: 'VOTES_QUEUE'
          value: votes.name
        }
        {
          name: 'APPROVAL_ENTITIES'
          value: approvals.name
        }
        {
          name: 'APPROVERS'
          value: approvers
        }
        {
          name: 'VOTE_RULE'
          value: voteRule
        }
        {
          name: 'RESOURCE_APPROVERS'
          value: resourceApprovers
        }
        {
          name: 'TEAMS_APP_ID'
          value: empty(teamsConversation) ? '' : clientId
        }
        {
          name: 'TEAMS_TENANT'
          value: empty(teamsConversation) ? '' : tenant().tenantId
        }
        {
          name: 'TEAMS_CONVERSATION'
          value: teamsConversation
        }
        {
          name: 'TEAMS_GROUPS'
          value: teamsGroups
        }
        {
          name: 'SLACK_TEAM'
          value: slackTeam
        }
        {
          name: 'SLACK_SIGNING_SECRET'
          value: empty(slackSigningSecretUri) ? '' : '@Microsoft.KeyVault(SecretUri=${slackSigningSecretUri})'
        }
        {
          name: 'BUTTON_SECRET'
          value: empty(buttonSecretUri) ? '' : '@Microsoft.KeyVault(SecretUri=${buttonSecretUri})'
        }
      ]
    }
    functionAppConfig: {
      deployment: {
        storage: {
          type: 'blobContainer'
          value: '${storage.properties.primaryEndpoints.blob}${package.name}'
          authentication: {
            type: 'UserAssignedIdentity'
            userAssignedIdentityResourceId: identityId
          }
        }
      }
      scaleAndConcurrency: {
        maximumInstanceCount: 40
        instanceMemoryMB: 2048
        alwaysReady: alwaysReady == 0 ? [] : readyForSlack
      }
      runtime: {
        name: 'python'
        version: '3.12'
      }
    }
  }
}

output hostName string = app.properties.defaultHostName
