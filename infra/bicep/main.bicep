// Service Bus for the bridges, their identity, alerts, and the bridge on a VM or a scale set.
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

@description('Public SSH key of the administrator.')
param sshPublicKey string = ''

@description('Size of the VM or of each instance.')
param vmSize string = 'Standard_B2s'

@description('Instances of the scale set.')
@minValue(1)
@maxValue(1000)
param instances int = 2

module identity 'modules/identity.bicep' = {
  name: 'sebridge-identity'
  params: {
    location: location
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

var hostName = '${namespaceName}.servicebus.windows.net'
var withBus = replace(loadTextContent('cloud-init.yaml'), '@NAMESPACE@', hostName)
var withIdentity = replace(withBus, '@CLIENT_ID@', identity.outputs.clientId)
var withSource = replace(withIdentity, '@SOURCE_URI@', sourceUri)
var customData = base64(replace(withSource, '@SOURCE_SHA256@', sourceSha256))

module machine 'modules/vm.bicep' = if (install == 'vm') {
  name: 'sebridge-vm'
  params: {
    location: location
    subnetId: subnetId
    vmSize: vmSize
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
    instances: instances
    sshPublicKey: sshPublicKey
    identityId: identity.outputs.id
    customData: customData
  }
}

output namespace string = hostName
output identityClientId string = identity.outputs.clientId
output identityId string = identity.outputs.id
