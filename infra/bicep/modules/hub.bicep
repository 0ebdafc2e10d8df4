// The hub: what it reads, what it may do, where it keeps it, and where it runs.
param location string
param namespaceName string
param environmentId string
param image string
param registry string
param registryIdentityId string
param hubName string
param databaseSubnetId string
param databaseZoneId string
param databaseAdminId string
param databaseAdminName string

@allowed(['Group', 'User', 'ServicePrincipal'])
param databaseAdminType string

param signInClientId string

// Not the bridges' own: these may not send approvals, and this may not tell of events.
param identityId string
param identityName string
param principalId string
param clientId string

@secure()
param config string

// Azure Service Bus Data Receiver and Data Sender, the same in every tenant.
var receiverRole = subscriptionResourceId(
  'Microsoft.Authorization/roleDefinitions',
  '4f6d3b9b-027b-4f4c-9142-0e5a2a2247e0'
)
var senderRole = subscriptionResourceId(
  'Microsoft.Authorization/roleDefinitions',
  '69a216fc-b8fb-44d8-bc22-1f3c2cd27a39'
)

resource namespace 'Microsoft.ServiceBus/namespaces@2024-01-01' existing = {
  name: namespaceName
}

resource events 'Microsoft.ServiceBus/namespaces/topics@2024-01-01' existing = {
  parent: namespace
  name: 'scheduled-events'
}

resource approvals 'Microsoft.ServiceBus/namespaces/queues@2024-01-01' existing = {
  parent: namespace
  name: 'vm-approvals-sessions'
}

// Expired is gone: a hub that is down for a week must not fill the topic of the bridges.
resource hears 'Microsoft.ServiceBus/namespaces/topics/subscriptions@2024-01-01' = {
  parent: events
  name: 'hub'
  properties: {
    maxDeliveryCount: 100
    lockDuration: 'PT1M'
    defaultMessageTimeToLive: 'P1D'
    deadLetteringOnMessageExpiration: false
    deadLetteringOnFilterEvaluationExceptions: true
  }
}

// Where Event Grid puts what Azure itself tells; its subscription is made by hand.
resource azureEvents 'Microsoft.ServiceBus/namespaces/queues@2024-01-01' = {
  parent: namespace
  name: 'azure-events'
  properties: {
    maxDeliveryCount: 100
    lockDuration: 'PT1M'
    defaultMessageTimeToLive: 'P1D'
    deadLetteringOnMessageExpiration: false
  }
}

resource readsEvents 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(hears.id, principalId, receiverRole)
  scope: hears
  properties: {
    principalId: principalId
    principalType: 'ServicePrincipal'
    roleDefinitionId: receiverRole
  }
}

resource readsAzure 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(azureEvents.id, principalId, receiverRole)
  scope: azureEvents
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

// Reached from its own network alone, and by tokens alone: there is no password to keep.
resource database 'Microsoft.DBforPostgreSQL/flexibleServers@2024-08-01' = {
  name: hubName
  location: location
  sku: {
    name: 'Standard_B2s'
    tier: 'Burstable'
  }
  properties: {
    version: '16'
    storage: {
      storageSizeGB: 64
      autoGrow: 'Enabled'
    }
    backup: {
      backupRetentionDays: 14
      geoRedundantBackup: 'Disabled'
    }
    network: {
      delegatedSubnetResourceId: databaseSubnetId
      privateDnsZoneArmResourceId: databaseZoneId
    }
    authConfig: {
      activeDirectoryAuth: 'Enabled'
      passwordAuth: 'Disabled'
      tenantId: tenant().tenantId
    }
  }
}

resource tables 'Microsoft.DBforPostgreSQL/flexibleServers/databases@2024-08-01' = {
  parent: database
  name: 'hub'
}

// Without an administrator nobody could sign in at all. The server makes one change at a
// time. By default it is the hub, whose server this is: so it can make its tables.
var isHubAdmin = empty(databaseAdminId)

resource administrator 'Microsoft.DBforPostgreSQL/flexibleServers/administrators@2024-08-01' = {
  parent: database
  name: isHubAdmin ? principalId : databaseAdminId
  dependsOn: [
    tables
  ]
  properties: {
    principalName: isHubAdmin ? identityName : databaseAdminName
    principalType: isHubAdmin ? 'ServicePrincipal' : databaseAdminType
    tenantId: tenant().tenantId
  }
}

var authorities = '/etc/ssl/certs/ca-certificates.crt'
var databaseHost = database.properties.fullyQualifiedDomainName
var store = 'postgresql://${identityName}@${databaseHost}/hub?sslmode=verify-full&sslrootcert=${authorities}'

// Nobody may reach the hub who has not signed in, from its first second on: it takes the
// name of a person from the platform. So it is closed until signIn is in force.
module closed 'hubapp.bicep' = {
  name: 'sebridge-hub-closed'
  dependsOn: [
    administrator
    readsEvents
    readsAzure
    sendsApprovals
  ]
  params: {
    location: location
    name: hubName
    isReachable: false
    environmentId: environmentId
    image: image
    registry: registry
    registryIdentityId: registryIdentityId
    identityId: identityId
    clientId: clientId
    store: store
    config: config
  }
}

resource app 'Microsoft.App/containerApps@2024-03-01' existing = {
  name: hubName
}

// The probes are asked inside.
resource signIn 'Microsoft.App/containerApps/authConfigs@2024-03-01' = {
  parent: app
  name: 'current'
  dependsOn: [
    closed
  ]
  properties: {
    platform: {
      enabled: true
    }
    globalValidation: {
      unauthenticatedClientAction: 'RedirectToLoginPage'
      redirectToProvider: 'azureactivedirectory'
    }
    identityProviders: {
      azureActiveDirectory: {
        registration: {
          clientId: signInClientId
          openIdIssuer: '${environment().authentication.loginEndpoint}${tenant().tenantId}/v2.0'
        }
        validation: {
          allowedAudiences: ['api://${signInClientId}', signInClientId]
        }
      }
    }
  }
}

module open 'hubapp.bicep' = {
  name: 'sebridge-hub-open'
  dependsOn: [
    signIn
  ]
  params: {
    location: location
    name: hubName
    isReachable: true
    environmentId: environmentId
    image: image
    registry: registry
    registryIdentityId: registryIdentityId
    identityId: identityId
    clientId: clientId
    store: store
    config: config
  }
}

output address string = open.outputs.address
