// Who gives a VM an application must be able to read it: without this right, Azure ends
// the deployment with LinkedAuthorizationFailed.
param galleryName string
param principalId string

// Reader, the same in every tenant.
var readerRole = subscriptionResourceId(
  'Microsoft.Authorization/roleDefinitions',
  'acdd72a7-3385-48ef-bd42-f606fba81ae7'
)

resource gallery 'Microsoft.Compute/galleries@2024-03-03' existing = {
  name: galleryName
}

resource reads 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(gallery.id, principalId, readerRole)
  scope: gallery
  properties: {
    principalId: principalId
    principalType: 'ServicePrincipal'
    roleDefinitionId: readerRole
  }
}
