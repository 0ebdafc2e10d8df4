// A policy for a subscription: VMs without the bridge get it, and compliance shows who
// lacks it. One deployment for each system; those for others need another assignmentName.
targetScope = 'subscription'

@description('Region of the assignment\'s own identity.')
param location string = deployment().location

@description('Name of the assignment.')
@maxLength(24)
param assignmentName string = 'sebridge-linux'

@description('AuditIfNotExists only shows who lacks it.')
@allowed(['DeployIfNotExists', 'AuditIfNotExists', 'Disabled'])
param effect string = 'AuditIfNotExists'

@description('The system that the application is for.')
@allowed(['Linux', 'Windows'])
param osType string = 'Linux'

@description('The processor that the application is for, where it matters.')
@allowed(['any', 'x64', 'arm64'])
param architecture string = 'any'

@description('Resource id of the application, without its version: an output of application.bicep.')
param applicationId string = ''

@description('The version for VMs that have none.')
param version string = '0.1.0'

@description('Resource id of the identity of the bridges: an output of main.bicep.')
param identityId string = ''

@description('Change the VMs that are there now, too, and not only those to come: 500 at most in one deployment.')
param remediate bool = false

// Not loadJsonContent: what stands in brackets is for the policy, not for this template.
var policy = json(loadTextContent('../fleet/policy/policy.json'))

var wrong = concat(
  empty(applicationId) ? ['applicationId is missing'] : [],
  empty(identityId) ? ['identityId is missing'] : [],
  remediate && effect != 'DeployIfNotExists' ? ['remediate needs the effect DeployIfNotExists'] : []
)
// /subscriptions/…/resourceGroups/…/providers/Microsoft.Compute/galleries/…/applications/…
var application = split(empty(wrong) ? applicationId : fail(join(wrong, '; ')), '/')

resource definition 'Microsoft.Authorization/policyDefinitions@2023-04-01' = {
  name: 'sebridge'
  properties: {
    policyType: 'Custom'
    displayName: policy.displayName
    description: policy.description
    mode: policy.mode
    metadata: policy.metadata
    parameters: policy.parameters
    policyRule: policy.policyRule
  }
}

resource assignment 'Microsoft.Authorization/policyAssignments@2023-04-01' = {
  name: assignmentName
  location: location
  identity: {
    type: 'SystemAssigned'
  }
  properties: {
    displayName: '${policy.displayName} (${osType})'
    policyDefinitionId: definition.id
    parameters: {
      effect: {
        value: effect
      }
      osType: {
        value: osType
      }
      architecture: {
        value: architecture
      }
      applicationId: {
        value: applicationId
      }
      version: {
        value: version
      }
      identityId: {
        value: identityId
      }
    }
  }
}

// Virtual Machine Contributor, to change VMs; Managed Identity Operator, to give them the
// identity; Reader, to give them the application. The assignment's own, and of no bridge;
// also when it only audits, since a role takes minutes to be known everywhere.
module roles 'modules/policyroles.bicep' = {
  name: 'sebridge-policy-roles-${assignmentName}'
  params: {
    principalId: assignment.identity.principalId
    roles: policy.policyRule.then.details.roleDefinitionIds
  }
}

module reader 'modules/galleryreader.bicep' = {
  name: 'sebridge-policy-reader-${assignmentName}'
  scope: resourceGroup(application[2], application[4])
  params: {
    galleryName: application[8]
    principalId: assignment.identity.principalId
  }
}

resource remediation 'Microsoft.PolicyInsights/remediations@2021-10-01' = if (remediate) {
  name: assignmentName
  dependsOn: [
    roles
    reader
  ]
  properties: {
    policyAssignmentId: assignment.id
    resourceDiscoveryMode: 'ReEvaluateCompliance'
    resourceCount: 500
    parallelDeployments: 10
    failureThreshold: {
      percentage: json('0.05')
    }
  }
}

output assignmentId string = assignment.id
