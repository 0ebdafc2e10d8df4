// What the identity of the policy's assignment may do with the VMs of the subscription.
targetScope = 'subscription'

param principalId string
param roles array

resource assignments 'Microsoft.Authorization/roleAssignments@2022-04-01' = [
  for role in roles: {
    name: guid(subscription().id, principalId, role)
    properties: {
      principalId: principalId
      principalType: 'ServicePrincipal'
      roleDefinitionId: '${subscription().id}${role}'
    }
  }
]
