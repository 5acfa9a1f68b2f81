"""Completion of perseusrun's command line in bash, zsh and fish, generated from its table of options.

The options end at the command, which each shell completes as it would without `perseusrun` in front.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

SHELLS = ("bash", "zsh", "fish")


@dataclass(frozen=True)
class _Option:
    flags: tuple[str, ...]
    values: int
    help: str
    choices: tuple[str, ...]


class Completion(argparse.Action):
    """`--completion SHELL`: prints the shell's script and ends."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        print({"bash": _bash, "zsh": _zsh, "fish": _fish}[values](list(_options(parser))))
        raise SystemExit(0)


def _options(parser: argparse.ArgumentParser) -> Iterator[_Option]:
    for action in parser._actions:
        if action.help is not argparse.SUPPRESS and action.option_strings:
            values = action.nargs if isinstance(action.nargs, int) else 1
            setting = getattr(action, "setting", None)
            choices = action.choices or (setting.choices if setting else ())
            text = re.sub(r"\s+", " ", action.help or "")
            yield _Option(tuple(action.option_strings), values, text, tuple(map(str, choices)))


def _flags(options: list[_Option], values: int) -> str:
    return "|".join(flag for option in options if option.values == values for flag in option.flags)


def _bash(options: list[_Option]) -> str:
    choices = "\n".join(
        f"""        {"|".join(option.flags)}) choices='{" ".join(option.choices)}';;"""
        for option in options
        if option.choices
    )
    return f"""\
# For ~/.bashrc: eval "$(perseusrun --completion bash)"
_perseusrun() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} option= choices= index=1
    while ((index < COMP_CWORD)); do
        option=${{COMP_WORDS[index]}}
        case "$option" in
            {_flags(options, 1)}) ((index += 2));;
            {_flags(options, 2)}) ((index += 3));;
            -*) ((index += 1));;
            *) declare -F _command_offset > /dev/null && _command_offset $index; return;;
        esac
    done
    if ((index == COMP_CWORD)); then
        if [[ $current == -* ]]; then
            COMPREPLY=($(compgen -W '{" ".join(flag for option in options for flag in option.flags)}' -- "$current"))
        else
            COMPREPLY=($(compgen -c -- "$current") $(compgen -f -- "$current"))
        fi
        return
    fi
    case "$option" in
{choices}
    esac
    [[ -z $choices ]] || COMPREPLY=($(compgen -W "$choices" -- "$current"))
}}
complete -o default -F _perseusrun perseusrun"""


def _zsh(options: list[_Option]) -> str:
    lines = []
    for option in options:
        text = re.sub(r"([\[\]:\\])", r"\\\1", option.help).replace("'", "'\\''")
        word = f"({' '.join(option.choices)})" if option.choices else "_files"
        values = f": :{word}" * option.values
        lines += [f"    '{'*' if option.values else ''}{flag}[{text}]{values}' \\" for flag in option.flags]
    body = "\n".join(lines)
    return f"""\
#compdef perseusrun
# For ~/.zshrc, after compinit: eval "$(perseusrun --completion zsh)"
_perseusrun() {{
  _arguments -S -A '-*' \\
{body}
    '*::command:_perseusrun_command'
}}
_perseusrun_command() {{
  if ((CURRENT == 1)); then _alternative 'commands:command:_command_names -e' 'files:script:_files'; else _normal; fi
}}
compdef _perseusrun perseusrun"""


def _fish(options: list[_Option]) -> str:
    def quoted(text: str) -> str:
        return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"

    lines = []
    for option in options:
        names = [
            f"-l {flag[2:]}" if flag.startswith("--") else f"-{'s' if len(flag) == 2 else 'o'} {flag[1:]}"
            for flag in option.flags
        ]
        value = (" -x -a " + quoted(" ".join(option.choices)) if option.choices else " -r") if option.values else ""
        lines.append(
            f"complete -c perseusrun -n __perseusrun_in_options {' '.join(names)}{value} -d {quoted(option.help)}"
        )
    body = "\n".join(lines)
    return f"""\
# For ~/.config/fish/config.fish: perseusrun --completion fish | source
function __perseusrun_command
    set -l skip 1
    for word in (commandline -opc)
        if test $skip -gt 0
            set skip (math $skip - 1)
            continue
        end
        switch $word
            case {" ".join(map(quoted, _flags(options, 1).split("|")))}
                set skip 1
            case {" ".join(map(quoted, _flags(options, 2).split("|")))}
                set skip 2
            case '-*'
            case '*'
                return 0
        end
    end
    return 1
end
function __perseusrun_in_options
    not __perseusrun_command
end
{body}
complete -c perseusrun -n __perseusrun_in_options -a '(__fish_complete_command)'"""
