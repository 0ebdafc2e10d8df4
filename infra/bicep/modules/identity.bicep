// An identity: of all bridges of the namespace, of the hub, or of the Functions app. Made
// before what is named by its principal, which a deployment must know when it begins.
param location string
param name string

resource identity 'Microsoft.ManagedIdentity/userAssignedIdentities@2023-01-31' = {
  name: name
  location: location
}

output name string = identity.name
output id string = identity.id
output principalId string = identity.properties.principalId
output clientId string = identity.properties.clientId
