"""`manage.py create_join_token`: print a join token for agents, once."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from controlplane.access import join_tokens
from controlplane.runtime.errors import Invalid


class Command(BaseCommand):
    """Prints the secret alone, so that it can be captured."""

    help = "Create a join token, bound to a name, a pattern of names, a pool or addresses, and print it once."

    def add_arguments(self, parser: CommandParser) -> None:
        """For whom, how many agents, and for how long."""
        parser.add_argument("--name", default="", help="the one node that may enrol with it")
        parser.add_argument("--name-pattern", default="", help="nodes of such names: gpu-a1-*; ? is one character")
        parser.add_argument("--pool", default="", help="agents of this --segment")
        parser.add_argument("--cidr", default="", help="agents from these networks, separated by commas")
        parser.add_argument("--uses", type=int, default=1, help="agents that may enrol with it")
        parser.add_argument("--hold", action="store_true", help="their nodes get no work until you confirm them")
        parser.add_argument("--ttl-s", type=float, default=join_tokens.TTL_S, help="seconds until it expires")

    def handle(self, *args: Any, **options: Any) -> None:
        """Make it. Raises CommandError, with every fault."""
        bound = ("name", "name_pattern", "pool", "cidr")
        binding = join_tokens.Binding(**{field: options[field] for field in bound})
        if not binding.binds:
            raise CommandError("bind the token: give --name, --name-pattern, --pool or --cidr (such as 10.1.0.0/16)")
        try:
            made = join_tokens.create(binding, uses=options["uses"], ttl_s=options["ttl_s"], hold=options["hold"])
        except Invalid as error:
            said = "; ".join(
                f"--{e['pointer'][1:].replace('_', '-')}: {e['message']} ({e['fix']})" for e in error.errors
            )
            raise CommandError(said) from error
        self.stdout.write(made.secret)
