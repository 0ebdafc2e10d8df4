# Read when TAB is pressed for the first time, and made by what is installed then.
eval "$(_SEBRIDGE_COMPLETE=bash_source sebridge)"
