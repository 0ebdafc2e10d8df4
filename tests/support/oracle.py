"""Why a test is skipped that compares with Qpid Proton."""

ORACLE = "Qpid Proton is in the extra [oracle]"
