"""What a command says on standard error, without what only a busy machine makes it say."""


def without_waiting(said: str) -> str:
    """The lines of it that do not tell, after a second without an answer, what is waited for."""
    lines = said.splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith(("warren: waiting: ", '{"waiting":')))
