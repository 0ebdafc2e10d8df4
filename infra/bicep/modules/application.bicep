// One application of the gallery with one version. The commands run in the folder where
// Azure puts the package and the configuration, under the names given here.
param location string
param galleryName string
param applicationName string
param osType string
param version string
param targetRegions array
param excludeFromLatest bool

// With a SAS they are secrets, in the history of this deployment too.
@secure()
param packageUri string

@secure()
param configUri string

var linux = {
  package: 'sebridge.tar.gz'
  install: 'tar -xzf sebridge.tar.gz --strip-components=1 && bash ./vm-application.sh install'
  remove: '{ [ -f vm-application.sh ] || tar -xzf sebridge.tar.gz --strip-components=1; } && bash ./vm-application.sh remove'
}
// cmd.exe runs these; the archive goes into a folder, as it brings a bridge.toml of its own.
var unpack = 'powershell.exe -NoProfile -NonInteractive -ExecutionPolicy Bypass -Command "Expand-Archive -Force -Path sebridge.zip -DestinationPath kit"'
var script = 'powershell.exe -NoProfile -NonInteractive -ExecutionPolicy Bypass -File kit\\vm-application.ps1'
var windows = {
  package: 'sebridge.zip'
  install: '${unpack} && ${script} install'
  remove: '${unpack} && ${script} remove'
}
var commands = osType == 'Windows' ? windows : linux

resource gallery 'Microsoft.Compute/galleries@2024-03-03' existing = {
  name: galleryName
}

resource application 'Microsoft.Compute/galleries/applications@2024-03-03' = {
  parent: gallery
  name: applicationName
  location: location
  properties: {
    supportedOSType: osType
    description: 'scheduled-events-bridge: scheduled events to Service Bus, Slack, webhooks and commands'
  }
}

resource applicationVersion 'Microsoft.Compute/galleries/applications/versions@2024-03-03' = {
  parent: application
  name: version
  location: location
  properties: {
    publishingProfile: {
      source: {
        mediaLink: packageUri
        defaultConfigurationLink: empty(configUri) ? null : configUri
      }
      manageActions: {
        install: commands.install
        // An update without a command of its own would be a removal before it.
        update: commands.install
        remove: commands.remove
      }
      settings: {
        packageFileName: commands.package
        configFileName: 'bridge.toml'
      }
      targetRegions: [
        for region in targetRegions: {
          name: region
          regionalReplicaCount: 1
        }
      ]
      excludeFromLatest: excludeFromLatest
    }
    safetyProfile: {
      allowDeletionOfReplicatedLocations: true
    }
  }
}

output applicationId string = application.id
