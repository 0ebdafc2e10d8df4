// The namespace, its entities, and what the bridges may do with them.
param location string
param namespaceName string
param sku string
param publicNetworkAccess string
param principalId string

// Azure Service Bus Data Sender and Data Receiver, the same in every tenant.
var senderRole = subscriptionResourceId(
  'Microsoft.Authorization/roleDefinitions',
  '69a216fc-b8fb-44d8-bc22-1f3c2cd27a39'
)
var receiverRole = subscriptionResourceId(
  'Microsoft.Authorization/roleDefinitions',
  '4f6d3b9b-027b-4f4c-9142-0e5a2a2247e0'
)

resource namespace 'Microsoft.ServiceBus/namespaces@2024-01-01' = {
  name: namespaceName
  location: location
  sku: {
    name: sku
    tier: sku
  }
  identity: {
    type: 'SystemAssigned'
  }
  properties: {
    disableLocalAuth: true
    minimumTlsVersion: '1.2'
    publicNetworkAccess: publicNetworkAccess
  }
}

// VMs that see the same event send the same MessageId: the first one counts.
resource events 'Microsoft.ServiceBus/namespaces/topics@2024-01-01' = {
  parent: namespace
  name: 'scheduled-events'
  properties: {
    requiresDuplicateDetection: true
    duplicateDetectionHistoryTimeWindow: 'P1D'
    defaultMessageTimeToLive: 'P14D'
    maxSizeInMegabytes: 5120
  }
}

resource approver 'Microsoft.ServiceBus/namespaces/topics/subscriptions@2024-01-01' = {
  parent: events
  name: 'approver'
  properties: {
    maxDeliveryCount: 10
    lockDuration: 'PT1M'
    defaultMessageTimeToLive: 'P1D'
    deadLetteringOnMessageExpiration: false
    deadLetteringOnFilterEvaluationExceptions: true
  }
}

// Expired is gone: dead letters of a subscription that nobody reads would fill the topic.
resource siem 'Microsoft.ServiceBus/namespaces/topics/subscriptions@2024-01-01' = {
  parent: events
  name: 'siem'
  properties: {
    maxDeliveryCount: 10
    lockDuration: 'PT1M'
    defaultMessageTimeToLive: 'P7D'
    deadLetteringOnMessageExpiration: false
    deadLetteringOnFilterEvaluationExceptions: true
  }
}

// A session for each VM and each group, so that the one that sees the event gets it.
resource approvals 'Microsoft.ServiceBus/namespaces/queues@2024-01-01' = {
  parent: namespace
  name: 'vm-approvals-sessions'
  properties: {
    requiresSession: true
    maxDeliveryCount: 10
    lockDuration: 'PT1M'
    defaultMessageTimeToLive: 'P1D'
    deadLetteringOnMessageExpiration: true
  }
}

resource replies 'Microsoft.ServiceBus/namespaces/queues@2024-01-01' = {
  parent: namespace
  name: 'replies'
  properties: {
    requiresSession: true
    maxDeliveryCount: 10
    lockDuration: 'PT1M'
    defaultMessageTimeToLive: 'P1D'
    deadLetteringOnMessageExpiration: false
  }
}

resource sendsEvents 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(events.id, principalId, senderRole)
  scope: events
  properties: {
    principalId: principalId
    principalType: 'ServicePrincipal'
    roleDefinitionId: senderRole
  }
}

resource receivesApprovals 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(approvals.id, principalId, receiverRole)
  scope: approvals
  properties: {
    principalId: principalId
    principalType: 'ServicePrincipal'
    roleDefinitionId: receiverRole
  }
}

resource sendsReplies 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(replies.id, principalId, senderRole)
  scope: replies
  properties: {
    principalId: principalId
    principalType: 'ServicePrincipal'
    roleDefinitionId: senderRole
  }
}

output namespaceId string = namespace.id
output namespaceName string = namespace.name
// With the suffix of the cloud: https://NAME.servicebus.windows.net:443/ in the public one.
output hostName string = split(replace(namespace.properties.serviceBusEndpoint, 'https://', ''), ':')[0]
