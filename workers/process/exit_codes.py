"""Exit codes of the processes of a node. They are told to whoever started one: the supervisor, a shell, systemd.
With them, how a program that starts one gets its error as more than a number.
"""

from __future__ import annotations

#: of a process that must not be restarted (bad directory, newer format, ...)
EXIT_DO_NOT_RESTART = 3
#: of a command, or of a first start, whose time was not enough
EXIT_TIMEOUT = 4
#: of a server that found no space on the disk when it started: it is started again until there is some
EXIT_NO_SPACE = 4
#: of a queue worker that found that the catalog was cut: the node ends, or ids would be given again
EXIT_CATALOG_CUT = 5
#: of a node that has stopped, and of `warren stop`: servers did not end by themselves, and were killed
EXIT_KILLED = 6
#: what is added to other things that a server lacked (lack.py); codes that nothing else uses
EXIT_LACKS = 80
#: set for a child that is to print an error as JSON {"error", "message"} in its last line
ERRORS_VARIABLE = "WARREN_ERRORS_AS_JSON"
