#requires -Version 5.1
<#
Fails an availability group over to a synchronised secondary before the event: what
sqlserver-failover does on Linux.

Settings (sqlserver-failover.psd1 beside it):
    @{ Group = 'ag1'; Instance = 'localhost'; Target = ''; FailBack = $false; Wait = 60
       SqlcmdOptions = @('-E', '-C') }
Needs: sqlcmd.exe, and ALTER AVAILABILITY GROUP on each replica for the service's account.
#>
param()
Set-StrictMode -Version 2
$ErrorActionPreference = 'Stop'
$again = 75 # the exit code after which the bridge runs a hook again
$unsettled = 'the role of this replica is not settled yet'

function Stop-Hook([string] $Text, [int] $Code = 1) {
    [Console]::Error.WriteLine("sqlserver-failover: $Text")
    exit $Code
}

$settings = @{
    Instance = 'localhost'; Target = ''; FailBack = $false; Wait = 60
    SqlcmdOptions = @('-E', '-C')
}
$own = Import-PowerShellDataFile (Join-Path $PSScriptRoot 'sqlserver-failover.psd1')
foreach ($key in $own.Keys) { $settings[$key] = $own[$key] }
if ("$($settings['Group'])" -cnotmatch '^[A-Za-z0-9_. -]+$') {
    Stop-Hook "Group may have letters, digits, blanks, '_', '.' and '-'"
}
$group = $settings.Group
$isTest = $env:SEBRIDGE_TEST -eq '1'
$state = $settings['State']
if (-not $state) { $state = Join-Path $env:ProgramData 'sebridge\state\hooks' }
$marker = Join-Path $state 'sqlserver-failover.done'

# The first column of what a statement gives, one line for each row.
function Invoke-Statement([string] $Instance, [string] $Statement) {
    $options = $settings.SqlcmdOptions
    $rows = & sqlcmd -S $Instance @options -b -l 10 -h -1 -W -Q "SET NOCOUNT ON; $Statement"
    if ($LASTEXITCODE -ne 0) { Stop-Hook "${Instance}: $($rows -join ' ')" $again }
    @($rows | Where-Object { $_ } | ForEach-Object { "$_".Trim() })
}

function Get-Role {
    $found = @(Invoke-Statement $settings.Instance @"
SELECT s.role_desc FROM sys.dm_hadr_availability_replica_states s
JOIN sys.availability_groups g ON g.group_id = s.group_id
WHERE s.is_local = 1 AND g.name = N'$group'
"@)
    if ($found.Count) { $found[0] } else { '' }
}

# The replicas that lose nothing when they become primary.
function Get-ReadyReplica {
    Invoke-Statement $settings.Instance @"
SELECT r.replica_server_name FROM sys.availability_replicas r
JOIN sys.availability_groups g ON g.group_id = r.group_id
JOIN sys.dm_hadr_database_replica_cluster_states d ON d.replica_id = r.replica_id
JOIN sys.dm_hadr_availability_replica_states s ON s.replica_id = r.replica_id
WHERE g.name = N'$group' AND s.role_desc = 'SECONDARY' AND r.availability_mode = 1
GROUP BY r.replica_server_name HAVING MIN(CAST(d.is_failover_ready AS int)) = 1
ORDER BY r.replica_server_name
"@
}

function Move-Primary([string] $To) {
    $statement = "ALTER AVAILABILITY GROUP [$group] FAILOVER"
    if ($isTest) { Write-Output "would run on ${To}: $statement"; return }
    Write-Output "+ on ${To}: $statement"
    Invoke-Statement $To $statement
}

# How many seconds to wait: what is left of the notice less 5 s, and at most Wait.
function Get-Patience {
    $left = [int] $settings.Wait
    $notice = 0
    if ([int]::TryParse("$env:SEBRIDGE_NOTICE_SECONDS", [ref] $notice)) {
        $left = [Math]::Min($left, $notice - 5)
    }
    [Math]::Max($left, 0)
}

function Invoke-Prepare {
    switch (Get-Role) {
        'PRIMARY' { break }
        'RESOLVING' { Stop-Hook $unsettled $again }
        '' { Stop-Hook "$($settings.Instance) has no availability group $group" }
        default { Write-Output 'this replica is not primary: nothing to do'; return }
    }
    $ready = @(Get-ReadyReplica)
    $to = $settings.Target
    if (-not $to -and $ready.Count) { $to = $ready[0] }
    if (-not $to -or $ready -notcontains $to) {
        Stop-Hook 'no secondary is ready to take over without loss' $again
    }
    if (-not $isTest) {
        New-Item -ItemType Directory -Force $state | Out-Null
        Set-Content -Path $marker -Value $group
    }
    Move-Primary $to
    if ($isTest) { return }
    $end = (Get-Date).AddSeconds((Get-Patience))
    while ((Get-Role) -ne 'SECONDARY') {
        if ((Get-Date) -ge $end) { Stop-Hook 'this replica is not secondary yet' $again }
        Start-Sleep -Seconds 1
    }
}

function Invoke-Restore {
    if (-not (Test-Path $marker)) {
        Write-Output 'nothing to restore: this hook has changed nothing'
        return
    }
    if ($env:SEBRIDGE_OTHER_EVENTS) {
        Write-Output "nothing is restored yet: another event waits: $env:SEBRIDGE_OTHER_EVENTS"
        return
    }
    if (-not $settings.FailBack) {
        Write-Output 'this replica stays secondary: FailBack is not set'
    } else {
        $role = Get-Role
        if ($role -eq 'RESOLVING') { Stop-Hook $unsettled $again }
        if ($role -eq 'SECONDARY') {
            Move-Primary $settings.Instance # refused, and tried again, while not synchronised
        }
    }
    if (-not $isTest) { Remove-Item $marker }
}

$turn = New-Object System.Threading.Mutex($false, 'Global\sebridge-sqlserver-failover')
try { [void] $turn.WaitOne() } catch [System.Threading.AbandonedMutexException] { }
try {
    switch ($env:SEBRIDGE_ACTION) {
        'prepare' { Invoke-Prepare }
        'restore' { Invoke-Restore }
        default { Stop-Hook 'SEBRIDGE_ACTION must be prepare or restore; the bridge sets it' 64 }
    }
} finally { $turn.ReleaseMutex() }
