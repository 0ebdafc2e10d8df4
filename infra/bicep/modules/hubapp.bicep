// The hub as a Container App; hub.bicep runs this twice, closed and then reachable.
param location string
param name string
param isReachable bool
param environmentId string
param image string
param registry string
param registryIdentityId string
param identityId string
param clientId string
param store string

@secure()
param config string

var own = {
  '${identityId}': {}
}
var pulls = empty(registryIdentityId) ? identityId : registryIdentityId
var both = union(own, {
  '${pulls}': {}
})
var registries = [
  {
    server: registry
    identity: registryIdentityId
  }
]

// Two of them share the database; hub.toml is mounted, and holds no secret of its own.
resource app 'Microsoft.App/containerApps@2024-03-01' = {
  name: name
  location: location
  identity: {
    type: 'UserAssigned'
    userAssignedIdentities: both
  }
  properties: {
    environmentId: environmentId
    configuration: {
      activeRevisionsMode: 'Single'
      ingress: {
        external: isReachable
        targetPort: 9470
        transport: 'http'
        allowInsecure: false
      }
      registries: empty(registry) ? [] : registries
      secrets: [
        {
          name: 'config'
          value: config
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
              value: store
            }
            {
              name: 'SEBRIDGE__HUB__STORE_CREDENTIAL'
              value: 'managed-identity'
            }
            {
              name: 'SEBRIDGE__HUB__STORE_CLIENT_ID'
              value: clientId
            }
            {
              name: 'AZURE_CLIENT_ID'
              value: clientId
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

output address string = 'https://${app.properties.configuration.ingress.fqdn}'
