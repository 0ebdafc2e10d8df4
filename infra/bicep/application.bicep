// The bridge as a VM Application: a gallery, the application, and one version of it.
targetScope = 'resourceGroup'

@description('Region of the gallery.')
param location string = resourceGroup().location

@description('Name of the gallery: letters, digits, dots and underscores.')
param galleryName string = 'sebridge'

@description('Name of the application; one for each system and each kind of processor.')
param applicationName string = 'sebridge'

@description('What the application is for.')
@allowed(['Linux', 'Windows'])
param osType string = 'Linux'

@description('Three numbers. A version is never changed: publish the next one.')
param version string = '0.1.0'

@description('Address of the package of infra/build.sh (.tar.gz for Linux, .zip for Windows) in a blob, with a SAS or readable to all.')
@secure()
param packageUri string = ''

@description('Address of bridge.toml in a blob; empty = each machine has its own.')
@secure()
param configUri string = ''

@description('Regions of the VMs; that of the gallery must be among them.')
param targetRegions array = [location]

@description('Not what the word latest means; rings.py and the policy name a version.')
param excludeFromLatest bool = false

var wrong = concat(
  empty(packageUri) ? ['packageUri is missing'] : [],
  contains(targetRegions, location) ? [] : ['targetRegions must have the region of the gallery in it']
)
var region = empty(wrong) ? location : fail(join(wrong, '; '))

resource gallery 'Microsoft.Compute/galleries@2024-03-03' = {
  name: galleryName
  location: region
  properties: {
    description: 'VM Applications of scheduled-events-bridge'
  }
}

module application 'modules/application.bicep' = {
  name: 'sebridge-application-${applicationName}'
  params: {
    location: location
    galleryName: gallery.name
    applicationName: applicationName
    osType: osType
    version: version
    packageUri: packageUri
    configUri: configUri
    targetRegions: targetRegions
    excludeFromLatest: excludeFromLatest
  }
}

output applicationId string = application.outputs.applicationId
