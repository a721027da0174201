"""`python -m mla_codegen`: the same as the command `mla-codegen`."""

from mla_codegen.cli import main

main()
