"""The C header of AMQP's methods, from their only declaration, `engine/amqp/spec.py`.

`python -m warren.tools.generate_layout` writes it, beside the others.
"""

from __future__ import annotations

from warren.engine.amqp import spec

_NUMBERS = (
    *("FRAME_METHOD", "FRAME_HEADER", "FRAME_BODY", "FRAME_HEARTBEAT", "FRAME_END", "FRAME_OVERHEAD"),
    *("DEPTH_MAX", "CONTENTS_MAX", "METHOD", "PUBLISH", "HEARTBEAT", "FAULT", "REFUSED"),
    *("ODD_EXPIRATION", "ODD_DELIVERY_MODE", "ODD_COPIES", "ODD_USER_ID", "ODD_SIZE", "ODD_REPLY_TO"),
)


def _constant(name: str) -> str:
    return name.replace(".", "_").replace("-", "_").upper()


def methods_header(note: str) -> str:
    """engine/amqp/methods.h."""
    lines = [f"/* {note} */", "#ifndef WR_AMQP_METHODS_H", "#define WR_AMQP_METHODS_H", "#include <stdbool.h>"]
    lines += ["#include <stdint.h>", ""]
    lines += [f"#define WR_AMQP_{name} {getattr(spec, name)}" for name in _NUMBERS]
    lines += ["", "/* reply codes */"]
    lines += [f"#define WR_AMQP_{reply.name} {reply.code}" for reply in spec.REPLIES.values()]
    lines += ["", "/* types of arguments; a reserved one is not given, and zero or empty on the wire */"]
    lines += [f"#define WR_AMQP_{_constant(type)} {number}" for number, type in enumerate(spec.TYPES)]
    most = max(len(method.arguments) for method in spec.METHODS.values())
    lines += [
        "#define WR_AMQP_RESERVED 0x80",
        f"#define WR_AMQP_ARGUMENTS_MAX {most}",
        "",
        "/* one method; `id`: class << 16 | method */",
        "typedef struct {",
        "    uint32_t id;",
        "    const char *name;",
        "    bool content, by_client, by_server;",
        "    uint8_t arguments_n, arguments[WR_AMQP_ARGUMENTS_MAX];",
        "} wr_amqp_method;",
        "",
        "/* methods by their ids */",
    ]
    methods = sorted(spec.METHODS.values())
    lines += [f"#define WR_AMQP_{_constant(method.name)} {method.id:#x}u" for method in methods]
    lines += [
        "",
        f"#define WR_AMQP_METHODS_N {len(methods)}",
        "/* X(id, name, content, by client, by server, how many arguments, the arguments …) */",
    ]
    lines.append("#define WR_AMQP_METHODS(X) \\")
    for method in methods:
        arguments = ", ".join(
            f"WR_AMQP_{_constant(argument.type)}{' | WR_AMQP_RESERVED' if argument.reserved else ''}"
            for argument in method.arguments
        )
        flags = ", ".join(str(int(flag)) for flag in (method.content, method.by_client, method.by_server))
        end = "" if method is methods[-1] else " \\"
        lines.append(
            f'    X({method.id:#x}u, "{method.name}", {flags}, {len(method.arguments)}, {arguments or "0"}){end}'
        )
    lines += ["", f"#define WR_AMQP_PROPERTIES_N {len(spec.PROPERTIES)}"]
    lines += [f"#define WR_AMQP_PROPERTY_{_constant(name)} {at}" for at, (name, _type) in enumerate(spec.PROPERTIES)]
    lines.append("/* X(name, type), in their order on the wire */")
    lines.append("#define WR_AMQP_PROPERTIES(X) \\")
    for name, type in spec.PROPERTIES:
        end = "" if name == spec.PROPERTIES[-1][0] else " \\"
        lines.append(f'    X("{name}", WR_AMQP_{_constant(type)}){end}')
    return "\n".join([*lines, "", "#endif", ""])
