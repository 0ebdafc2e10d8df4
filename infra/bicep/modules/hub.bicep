// The hub: what it reads, what it may do, where it keeps it, and where it runs.
param location string
param namespaceName string
param environmentId string
param image string
param hubName string
param databaseSubnetId string
param databaseZoneId string
param clientId string

@secure()
param config string

@secure()
param store string

// Azure Service Bus Data Receiver and Data Sender, the same in every tenant.
var receiverRole = subscriptionResourceId('Microsoft.Authorization/roleDefinitions', '4f6d3b9b-027b-4f4c-9142-0e5a2a2247e0')
var senderRole = subscriptionResourceId('Microsoft.Authorization/roleDefinitions', '69a216fc-b8fb-44d8-bc22-1f3c2cd27a39')

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

// Not the bridges' own: these may not send approvals, and this may not tell of events.
resource identity 'Microsoft.ManagedIdentity/userAssignedIdentities@2023-01-31' = {
  name: 'sebridge-hub'
  location: location
}

resource readsEvents 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(hears.id, identity.id, receiverRole)
  scope: hears
  properties: {
    principalId: identity.properties.principalId
    principalType: 'ServicePrincipal'
    roleDefinitionId: receiverRole
  }
}

resource readsAzure 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(azureEvents.id, identity.id, receiverRole)
  scope: azureEvents
  properties: {
    principalId: identity.properties.principalId
    principalType: 'ServicePrincipal'
    roleDefinitionId: receiverRole
  }
}

resource sendsApprovals 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(approvals.id, identity.id, senderRole)
  scope: approvals
  properties: {
    principalId: identity.properties.principalId
    principalType: 'ServicePrincipal'
    roleDefinitionId: senderRole
  }
}

// Reached from its own network alone; who signs in is a role of the database.
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
      passwordAuth: 'Enabled'
    }
  }
}

resource tables 'Microsoft.DBforPostgreSQL/flexibleServers/databases@2024-08-01' = {
  parent: database
  name: 'hub'
}

// Two of them share the database; hub.toml is mounted, and holds no secret of its own.
resource app 'Microsoft.App/containerApps@2024-03-01' = {
  name: hubName
  location: location
  identity: {
    type: 'UserAssigned'
    userAssignedIdentities: {
      '${identity.id}': {}
    }
  }
  properties: {
    environmentId: environmentId
    configuration: {
      activeRevisionsMode: 'Single'
      ingress: {
        external: true
        targetPort: 9470
        transport: 'http'
        allowInsecure: false
      }
      secrets: [
        {
          name: 'config'
          value: config
        }
        {
          name: 'store'
          value: store
        }
      ]
    }
    template: {
      containers: [
        {
          name: 'hub'
          image: image
          command: ['sebridge', 'hub', '-c', '/config/hub.toml']
          resources: {
            cpu: json('1.0')
            memory: '2Gi'
          }
          env: [
            {
              name: 'STORE'
              secretRef: 'store'
            }
            {
              name: 'AZURE_CLIENT_ID'
              value: identity.properties.clientId
            }
          ]
          probes: [
            {
              type: 'Liveness'
              httpGet: {
                path: '/livez'
                port: 9470
              }
            }
            {
              type: 'Readiness'
              httpGet: {
                path: '/readyz'
                port: 9470
              }
            }
          ]
          volumeMounts: [
            {
              volumeName: 'config'
              mountPath: '/config'
            }
          ]
        }
      ]
      scale: {
        minReplicas: 2
        maxReplicas: 2
      }
      volumes: [
        {
          name: 'config'
          storageType: 'Secret'
          secrets: [
            {
              secretRef: 'config'
              path: 'hub.toml'
            }
          ]
        }
      ]
    }
  }
}

// Nobody reaches the hub who has not signed in; the probes are asked inside.
resource signIn 'Microsoft.App/containerApps/authConfigs@2024-03-01' = {
  parent: app
  name: 'current'
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
          clientId: clientId
          openIdIssuer: '${environment().authentication.loginEndpoint}${tenant().tenantId}/v2.0'
        }
        validation: {
          allowedAudiences: ['api://${clientId}', clientId]
        }
      }
    }
  }
}

output address string = 'https://${app.properties.configuration.ingress.fqdn}'
output principalId string = identity.properties.principalId
