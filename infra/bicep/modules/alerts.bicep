// Somebody hears of dead letters: of a refused approval, and of what no consumer could read.
param namespaceId string
param alertEmail string

resource people 'Microsoft.Insights/actionGroups@2023-01-01' = if (!empty(alertEmail)) {
  name: 'sebridge'
  location: 'Global'
  properties: {
    groupShortName: 'sebridge'
    enabled: true
    emailReceivers: [
      {
        name: 'operators'
        emailAddress: alertEmail
        useCommonAlertSchema: true
      }
    ]
  }
}

var operators = [
  {
    actionGroupId: people.id
  }
]

resource deadLetters 'Microsoft.Insights/metricAlerts@2018-03-01' = {
  name: 'sebridge-dead-letters'
  location: 'global'
  properties: {
    description: 'Messages that were refused or that nobody could read.'
    severity: 2
    enabled: true
    scopes: [
      namespaceId
    ]
    evaluationFrequency: 'PT5M'
    windowSize: 'PT5M'
    autoMitigate: true
    criteria: {
      'odata.type': 'Microsoft.Azure.Monitor.SingleResourceMultipleMetricCriteria'
      allOf: [
        {
          criterionType: 'StaticThresholdCriterion'
          name: 'dead'
          metricNamespace: 'Microsoft.ServiceBus/namespaces'
          metricName: 'DeadletteredMessages'
          dimensions: [
            {
              name: 'EntityName'
              operator: 'Include'
              values: [
                '*'
              ]
            }
          ]
          operator: 'GreaterThan'
          threshold: 0
          timeAggregation: 'Maximum'
        }
      ]
    }
    actions: empty(alertEmail) ? [] : operators
  }
}
