// Service Bus for the bridges, their identity, alerts, the bridge on a VM or a scale set,
// and the Functions app that approvals come from.
targetScope = 'resourceGroup'

@description('Region of everything.')
param location string = resourceGroup().location

@description('Name of the Service Bus namespace, unique in Azure.')
@minLength(6)
@maxLength(50)
param namespaceName string = 'sebridge-${uniqueString(resourceGroup().id)}'

@description('Standard will do; Premium has private endpoints, zones and messages over 256 KB.')
@allowed(['Standard', 'Premium'])
param sku string = 'Standard'

@description('Disabled needs Premium and a private endpoint of your own.')
@allowed(['Enabled', 'Disabled'])
param publicNetworkAccess string = 'Enabled'

@description('Who is mailed when messages are dead letters; empty = no mail.')
param alertEmail string = ''

@description('Where the bridge is installed: a new VM, a new scale set, or nowhere.')
@allowed(['none', 'vm', 'scaleSet'])
param install string = 'none'

@description('Where the bridge comes from: https address of a .tar.gz of the repository.')
param sourceUri string = ''

@description('SHA-256 of that archive, in hexadecimal.')
param sourceSha256 string = ''

@description('Existing subnet for the VM or the scale set.')
param subnetId string = ''

@description('User name of the administrator, who signs in with the key.')
param adminUsername string = 'azureuser'

@description('Public SSH key of the administrator.')
param sshPublicKey string = ''

@description('Size of the VM or of each instance.')
param vmSize string = 'Standard_B2s'

@description('Instances of the scale set; over 100 it spans several placement groups.')
@minValue(1)
@maxValue(1000)
param instances int = 2

@description('Also the Functions app of infra/functions; its code is published afterwards.')
param withApprover bool = false

@description('Name of that app, unique in Azure.')
@minLength(2)
@maxLength(55)
param approverName string = 'sebridge-approver-${uniqueString(resourceGroup().id)}'

@description('Name of its storage account, unique in Azure.')
@minLength(3)
@maxLength(24)
param approverStorageName string = 'sebridge${uniqueString(resourceGroup().id)}'

@description('Who may approve, with commas: user ids of Slack, object ids of Entra, both of one person with =; empty = nobody.')
param approvers string = ''

@description('Whose votes are enough.')
@allowed(['one', 'two', 'resources'])
param voteRule string = 'one'

@description('For the rule resources: JSON such as {"web-*": ["U012AB3CD"]}.')
param resourceApprovers string = ''

@description('The only Slack workspace that clicks are taken from; empty = any.')
param slackTeam string = ''

@description('Key Vault address of the signing secret of the Slack app; empty = no Slack.')
param slackSigningSecretUri string = ''

@description('Key Vault address of what buttons are signed with; empty = no Slack.')
param buttonSecretUri string = ''

@description('Instances kept ready for Slack, which waits three seconds; 0 = none, and clicks get lost.')
@minValue(0)
@maxValue(20)
param approverAlwaysReady int = 1

@description('Channel or group chat of Teams that gets cards, such as 19:…@thread.tacv2; empty = no Teams.')
param teamsConversation string = ''

@description('Object ids of groups whose members may approve in Teams, with commas; empty = none.')
param teamsGroups string = ''

@description('Name of the bot in Teams, unique in Azure.')
@minLength(4)
@maxLength(42)
param botName string = 'sebridge-bot-${uniqueString(resourceGroup().id)}'

@description('Also the hub, one view of the fleet: a Container App and PostgreSQL.')
param withHub bool = false

@description('Name of the hub and of its database server, unique in Azure.')
@minLength(3)
@maxLength(32)
param hubName string = 'sebridge-hub-${uniqueString(resourceGroup().id)}'

@description('Image of the hub: infra/container with EXTRAS=hub.')
param hubImage string = ''

@description('Existing managed environment of Container Apps.')
param hubEnvironmentId string = ''

@description('Existing subnet, delegated to Microsoft.DBforPostgreSQL/flexibleServers.')
param hubDatabaseSubnetId string = ''

@description('Existing private DNS zone of the database.')
param hubDatabaseZoneId string = ''

@description('Client id of the app registration that people sign in to the hub with.')
param hubClientId string = ''

@description('The text of hub.toml.')
@secure()
param hubConfig string = ''

@description('Registry of the image that must be signed in to, such as contoso.azurecr.io; empty = open to all.')
param hubRegistry string = ''

@description('Resource id of an identity that may pull from it (AcrPull).')
param hubRegistryIdentityId string = ''

@description('Object id of the administrator of the database: a group, a person or an identity; empty = the hub itself.')
param hubDatabaseAdminId string = ''

@description('Its name: the display name of a group or an identity, the user principal name of a person.')
param hubDatabaseAdminName string = ''

@description('What it is.')
@allowed(['Group', 'User', 'ServicePrincipal'])
param hubDatabaseAdminType string = 'Group'

var isWrongNetwork = sku == 'Standard' && publicNetworkAccess == 'Disabled'
var hubNeeds = [hubImage, hubEnvironmentId, hubDatabaseSubnetId, hubDatabaseZoneId, hubClientId, hubConfig]
var wrong = concat(
  isWrongNetwork ? ['publicNetworkAccess=Disabled needs sku=Premium'] : [],
  install != 'none' && empty(subnetId) ? ['install needs subnetId'] : [],
  install != 'none' && empty(sshPublicKey) ? ['install needs sshPublicKey'] : [],
  install != 'none' && (empty(sourceUri) || empty(sourceSha256)) ? ['install needs sourceUri and sourceSha256'] : [],
  withHub && contains(hubNeeds, '') ? ['withHub needs six parameters: see infra/bicep/README.md'] : [],
  empty(hubRegistry) != empty(hubRegistryIdentityId) ? ['hubRegistry and hubRegistryIdentityId go together'] : [],
  empty(hubDatabaseAdminId) != empty(hubDatabaseAdminName) ? ['hubDatabaseAdminId and …Name go together'] : [],
  voteRule == 'resources' && empty(resourceApprovers) ? ['voteRule=resources needs resourceApprovers'] : [],
  !withApprover && !empty(teamsConversation) ? ['teamsConversation needs withApprover'] : [],
  empty(slackSigningSecretUri) != empty(buttonSecretUri) ? ['Slack needs both of its secrets'] : []
)
// All else waits for the identity, and so for this.
var region = empty(wrong) ? location : fail(join(wrong, '; '))

module identity 'modules/identity.bicep' = {
  name: 'sebridge-identity'
  params: {
    location: region
    name: 'sebridge'
  }
}

module hubIdentity 'modules/identity.bicep' = if (withHub) {
  name: 'sebridge-hub-identity'
  params: {
    location: region
    name: 'sebridge-hub'
  }
}

module approverIdentity 'modules/identity.bicep' = if (withApprover) {
  name: 'sebridge-approver-identity'
  params: {
    location: region
    name: 'sebridge-approver'
  }
}

module bus 'modules/bus.bicep' = {
  name: 'sebridge-bus'
  params: {
    location: location
    namespaceName: namespaceName
    sku: sku
    publicNetworkAccess: publicNetworkAccess
    principalId: identity.outputs.principalId
  }
}

module alerts 'modules/alerts.bicep' = {
  name: 'sebridge-alerts'
  params: {
    namespaceId: bus.outputs.namespaceId
    alertEmail: alertEmail
  }
}

module hub 'modules/hub.bicep' = if (withHub) {
  name: 'sebridge-hub'
  params: {
    location: location
    namespaceName: bus.outputs.namespaceName
    environmentId: hubEnvironmentId
    image: hubImage
    registry: hubRegistry
    registryIdentityId: hubRegistryIdentityId
    hubName: hubName
    databaseSubnetId: hubDatabaseSubnetId
    databaseZoneId: hubDatabaseZoneId
    databaseAdminId: hubDatabaseAdminId
    databaseAdminName: hubDatabaseAdminName
    databaseAdminType: hubDatabaseAdminType
    signInClientId: hubClientId
    identityId: hubIdentity!.outputs.id
    identityName: hubIdentity!.outputs.name
    principalId: hubIdentity!.outputs.principalId
    clientId: hubIdentity!.outputs.clientId
    config: hubConfig
  }
}

module approver 'modules/approver.bicep' = if (withApprover) {
  name: 'sebridge-approver'
  params: {
    location: location
    namespaceName: bus.outputs.namespaceName
    hostName: bus.outputs.hostName
    identityId: approverIdentity!.outputs.id
    principalId: approverIdentity!.outputs.principalId
    clientId: approverIdentity!.outputs.clientId
    storageName: approverStorageName
    appName: approverName
    approvers: approvers
    voteRule: voteRule
    resourceApprovers: resourceApprovers
    slackTeam: slackTeam
    slackSigningSecretUri: slackSigningSecretUri
    buttonSecretUri: buttonSecretUri
    teamsConversation: teamsConversation
    teamsGroups: teamsGroups
    alwaysReady: approverAlwaysReady
  }
}

module bot 'modules/bot.bicep' = if (withApprover && !empty(teamsConversation)) {
  name: 'sebridge-bot'
  params: {
    botName: botName
    hostName: approver!.outputs.hostName
    clientId: approverIdentity!.outputs.clientId
    identityId: approverIdentity!.outputs.id
  }
}

var withBus = replace(loadTextContent('cloud-init.yaml'), '@NAMESPACE@', bus.outputs.hostName)
var withIdentity = replace(withBus, '@CLIENT_ID@', identity.outputs.clientId)
// VMs of one placement group see the same events, and it takes 100 instances. What is
// sent to the session of a larger group would reach one that knows nothing of the event.
var sessions = install == 'scaleSet' && instances <= 100 ? '["{vm_id}", "{group}"]' : '["{vm_id}"]'
var withSessions = replace(withIdentity, '@SESSIONS@', sessions)
var withSource = replace(withSessions, '@SOURCE_URI@', sourceUri)
var customData = base64(replace(withSource, '@SOURCE_SHA256@', sourceSha256))

module machine 'modules/vm.bicep' = if (install == 'vm') {
  name: 'sebridge-vm'
  params: {
    location: location
    subnetId: subnetId
    vmSize: vmSize
    adminUsername: adminUsername
    sshPublicKey: sshPublicKey
    identityId: identity.outputs.id
    customData: customData
  }
}

module scaleSet 'modules/scaleset.bicep' = if (install == 'scaleSet') {
  name: 'sebridge-scaleset'
  params: {
    location: location
    subnetId: subnetId
    vmSize: vmSize
    adminUsername: adminUsername
    instances: instances
    sshPublicKey: sshPublicKey
    identityId: identity.outputs.id
    customData: customData
  }
}

output namespace string = bus.outputs.hostName
output identityClientId string = identity.outputs.clientId
output identityId string = identity.outputs.id
output approverPrincipalId string = withApprover ? approverIdentity!.outputs.principalId : ''
output botAppId string = withApprover ? approverIdentity!.outputs.clientId : ''
output approverHostName string = withApprover ? approver!.outputs.hostName : ''
output hubAddress string = withHub ? hub!.outputs.address : ''
output hubPrincipalId string = withHub ? hubIdentity!.outputs.principalId : ''
