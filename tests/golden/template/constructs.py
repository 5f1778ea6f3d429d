#!/usr/bin/env python3
"""Small templates, one for each construct that published chat templates use, as transformers renders them.

Made with the packages of make.py. Usage: constructs.py, which writes constructs.json beside this script:
`[[template, text or null]]`, null for what Jinja2 refuses. Replayed by `cargo test` (`crates/tokenizer/tests/template.rs`)
with the conversation `MESSAGES`, the tools `TOOLS`, and the time of make.py.
"""
import json
import pathlib

from make import TOOLS, chat_template_utils

HERE = pathlib.Path(__file__).resolve().parent
MESSAGES = [
    {"role": "system", "content": "  Be brief.\n"},
    {"role": "user", "content": "Why is the <sky> blue? It's \"odd\"."},
    {"role": "assistant", "content": "<think>hm</think>Rayleigh", "tool_calls": [
        {"id": "a1", "type": "function", "function": {"name": "f", "arguments": {"x": 1, "y": [1.5, None, True], "z": {"k": "v"}}}}]},
    {"role": "tool", "content": [{"type": "text", "text": "r1"}, {"type": "image"}]},
    {"role": "user", "content": "123"},
]
U = "messages[1].content"
A = "messages[2].tool_calls[0].function.arguments"
CONSTRUCTS = [
    # Tags and white space.
    "a\n  {% if true %}\n  b\n  {% endif %}\nc\n", "a  {%- if true -%}  b  {%- endif %}\n\n c", "{%+ if true +%}\nx{% endif %}", "{{- 1 -}} \n {{ 2 }}\n\n",
    "{# one #}a{#- two -#} b", "{% raw %}{{ x }}{% endraw %}", "{%- set x = 1 -%}\n{{ x }}", "{% set x %}a {{ 1 + 1 }} b{% endset %}{{ x | trim }}!",
    "{% set a, b = 1, 2 %}{{ a + b }}", "{% with x = 3 %}{{ x }}{% endwith %}", "{% filter upper %}abc{% endfilter %}",
    "{% generation %}\n x\n{% endgeneration %}\ny", "{%- generation -%} x {%- endgeneration -%} y", "{{ 'a\\nb' }}{{ \"c\\td\" }}{{ 'é' }}",
    # Loops.
    "{% for m in messages %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }};{% endfor %}",
    "{% for m in messages if m.role == 'user' %}{{ loop.index }}{{ m.content[:3] }}{% else %}none{% endfor %}", "{% for m in [] %}x{% else %}none{% endfor %}",
    "{% for m in messages %}{% if loop.previtem is defined %}{{ loop.previtem.role }}>{% endif %}{{ m.role }}{% if loop.nextitem is defined %}<{{ loop.nextitem.role }}{% endif %} {% endfor %}",
    "{% for m in messages %}{% if loop.index0 == 1 %}{% continue %}{% endif %}{% if loop.index0 == 3 %}{% break %}{% endif %}{{ m.role }}{% endfor %}",
    "{% for k, v in " + A + ".items() %}{{ k }}={{ v }};{% endfor %}", "{% for k in " + A + " %}{{ k }}{% endfor %}", "{% for i in range(3) %}{{ i }}{% endfor %}{% for i in range(4, 0, -2) %}{{ i }}{% endfor %}",
    "{% for m in messages | reverse %}{{ m.role[0] }}{% endfor %}", "{% for m in messages[::-1] %}{{ m.role[0] }}{% endfor %}", "{% for m in messages[1:] %}{{ m.role[0] }}{% endfor %}", "{% for m in messages[:-1] %}{{ m.role[0] }}{% endfor %}",
    "{% for c in 'abc' %}{{ c }}-{% endfor %}", "{% for m in messages %}{{ loop.cycle('a', 'b') }}{% endfor %}",
    "{% set ns = namespace(n=0, s='') %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% set ns.s = ns.s + m.role[0] %}{% endfor %}{{ ns.n }}{{ ns.s }}",
    "{% set x = 1 %}{% for m in messages %}{% set x = 2 %}{% endfor %}{{ x }}",
    # Macros.
    "{% macro f(x, y=2, z=none) %}[{{ x }},{{ y }},{{ z }}]{% endmacro %}{{ f(1) }}{{ f(1, z='q') }}{{ f(y=5, x=4) }}", "{% macro f(d) %}{% if d > 0 %}{{ d }}{{ f(d - 1) }}{% endif %}{% endmacro %}{{ f(3) }}",
    "{% macro f() %}<{{ caller() }}>{% endmacro %}{% call f() %}x{% endcall %}", "{% macro f(x) -%}\n  {{ x }}\n{%- endmacro %}{{ f(1) ~ f('a') }}",
    # Operators.
    "{{ 7 // 2 }} {{ 7 % 3 }} {{ 2 ** 3 }} {{ 7 / 2 }} {{ 6 / 2 }} {{ -3 }} {{ 1.5 + 1 }} {{ 3 * 2 }}", "{{ 'a' + 'b' }}{{ 'a' ~ 1 ~ none ~ true }}{{ 'ab' * 2 }}{{ [1] + [2] }}",
    "{{ 1 < 2 }} {{ 1 < 2 < 3 }} {{ 'a' == 'a' }} {{ 1 != 1 }} {{ none == false }} {{ 1 == 1.0 }}", "{{ 'sky' in " + U + " }} {{ 'x' not in 'abc' }} {{ 'role' in messages[0] }} {{ 2 in [1, 2] }}",
    "{{ not true or false and true }} {{ (1 or 2) }} {{ ('' or 'b') }} {{ (0 and 1) }} {{ none or [] }}", "{{ 'x' if true else 'y' }}{{ 'x' if false }}|", "{{ (1, 2) }} {{ [1, 'a', none] }} {{ {'a': 1, 'b': [true]} }} {{ () }}",
    "{{ true }} {{ false }} {{ none }} {{ True }} {{ None }}", "{{ messages[-1].content }} {{ messages[0]['role'] }} {{ messages[1]['content'][4:6] }} {{ messages.99 }}", "{{ undefined_thing }}|{{ messages[0].nothing }}|{{ messages[0]['nothing'] }}",
    "{{ 1000000 }} {{ 1e3 }} {{ 0.1 + 0.2 }} {{ 1.0 }} {{ 123456789012345678 }} {{ 5e-7 }} {{ 1e100 }}",
    # Tests.
    "{{ x is defined }} {{ messages is defined }} {{ x is undefined }} {{ messages[0].y is defined }} {{ none is none }} {{ x is none }}", "{{ 'a' is string }} {{ 1 is number }} {{ 1.5 is float }} {{ 1 is integer }} {{ true is boolean }} {{ true is number }} {{ true is integer }}",
    "{{ messages is iterable }} {{ 'a' is iterable }} {{ 1 is iterable }} {{ none is iterable }} {{ messages is sequence }} {{ 'a' is sequence }} {{ messages[0] is sequence }} {{ messages[0] is mapping }} {{ [] is mapping }}",
    "{{ 3 is odd }} {{ 4 is even }} {{ 6 is divisibleby(3) }} {{ 1 is true }} {{ true is true }} {{ false is false }} {{ 1 is sameas 1 }} {{ 1 is eq 1 }} {{ 2 is gt 1 }} {{ 'a' is in 'abc' }} {{ 1 is not none }}", "{{ 'a' is lower }} {{ 'A' is upper }} {{ raise_exception is callable }}",
    # Filters.
    "{{ '  a ' | trim }}|{{ 'xxaxx' | trim('x') }}", "{{ 'aBc' | upper }}{{ 'aBc' | lower }}{{ 'hello world' | title }}{{ 'hello World' | capitalize }}", "{{ [1, 2, 3] | join(', ') }}{{ 'abc' | join('-') }}{{ [1, none, 'a'] | join }}",
    "{{ messages | length }}{{ 'abc' | length }}{{ " + A + " | count }}", "{{ x | default('d') }}{{ '' | default('d') }}{{ '' | default('d', true) }}{{ none | default('d', boolean=true) }}{{ 0 | d(1, true) }}", "{{ messages | first | attr('role') }}{{ (messages | last).role }}{{ [] | first }}|",
    "{{ messages | map(attribute='role') | join(',') }}", "{{ ['a', 'b'] | map('upper') | list }}", "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}{{ messages | selectattr('tool_calls') | list | length }}{{ messages | selectattr('tool_calls', 'defined') | map(attribute='role') | list }}",
    "{{ messages | rejectattr('role', 'in', ['user', 'tool']) | map(attribute='role') | list }}", "{{ [1, none, 2, 0] | select | list }} {{ [1, 2, 3] | select('odd') | list }} {{ [1, 2] | reject('equalto', 1) | list }}", "{{ [3, 1, 2] | sort }} {{ [3, 1, 2] | sort(reverse=true) }} {{ ['b', 'A'] | sort }} {{ messages | sort(attribute='role') | map(attribute='role') | list }}",
    "{% for k, v in {'b': 1, 'a': 2} | dictsort %}{{ k }}{{ v }}{% endfor %} {% for k, v in {'b': 1} | items %}{{ k }}{{ v }}{% endfor %}", "{{ [1, 1, 2] | unique | list }} {{ [1, 2, 3] | sum }} {{ [1, 3, 2] | max }} {{ [1, 3, 2] | min }}", "{{ 'a,b' | replace(',', ';') }} {{ 'aaa' | replace('a', 'b', 2) }}", "{{ '12' | int + 1 }} {{ 'x' | int }} {{ 'x' | int(7) }} {{ '1.5' | float }} {{ 3.7 | int }} {{ 2.5 | round }} {{ 2.345 | round(2) }} {{ -3 | abs }}",
    "{{ 1 | string + 'a' }} {{ none | string }} {{ [1] | string }}", "{{ 'a' | list }} {{ 'cba' | reverse }} {{ [1, 2] | reverse | list }}", "{{ '<a>' | e }} {{ '<a>' | escape }} {{ '<a>' | safe }}", "{{ 'a\nb' | indent }} {{ 'a\nb' | indent(2) }} {{ 'a\nb' | indent(2, true) }} {{ 'a\n\nb' | indent(width=1, first=true) }}",
    "{{ [1, 2, 3, 4, 5] | batch(2) | list }} {{ [1, 2, 3, 4, 5] | slice(2) | list }}", "{{ [{'a': 1, 'b': 2}, {'a': 1, 'b': 3}] | groupby('a') | list | length }}", "{{ 'x=%s y=%d' | format('a', 3) }}", "{{ 'a b' | urlencode }} {{ 'a b c' | wordcount }}", "{{ '%.2f' | format(1.005) }}",
    # JSON.
    "{{ messages[0] | tojson }}", "{{ " + A + " | tojson }} {{ " + A + " | tojson(indent=2) }} {{ " + A + " | tojson(sort_keys=true) }}", "{{ " + U + " | tojson }} {{ 'é\u2028' | tojson }} {{ 'é🙂' | tojson(ensure_ascii=true) }}", "{{ [1.0, 1e-7, 1e16, 12345678901234567890] | tojson }} {{ {'a': 1} | tojson(separators=(',', ':')) }} {{ [] | tojson(indent=4) }}{{ {} | tojson }}", "{{ tools | tojson(indent=4) }}", "{{ tools[0].function.parameters | tojson }}", "{{ none | tojson }} {{ true | tojson }} {{ '\\u0007/' | tojson }}",
    # Methods.
    "{{ ' a '.strip() }}|{{ ' a '.lstrip() }}|{{ ' a '.rstrip() }}|{{ 'xax'.strip('x') }}|{{ '\\nab\\n'.strip('\\n') }}", "{{ 'a,b,c'.split(',') }} {{ 'a b  c'.split() }} {{ 'a,b,c'.split(',', 1) }} {{ 'a,b,c'.rsplit(',', 1) }} {{ 'a\\nb'.splitlines() }}", "{{ messages[2].content.split('</think>')[-1] }} {{ messages[2].content.split('<think>')[-1].split('</think>')[0] }}",
    "{{ 'abc'.startswith('a') }} {{ 'abc'.endswith('bc') }} {{ 'abc'.startswith(('x', 'a')) }}", "{{ 'abc'.upper() }}{{ 'ABC'.lower() }}{{ 'abc def'.title() }}{{ 'abc'.capitalize() }}{{ 'aBc'.swapcase() }}", "{{ 'abcb'.replace('b', 'x') }}{{ 'abcb'.replace('b', 'x', 1) }}", "{{ 'abcb'.find('b') }} {{ 'abc'.find('z') }} {{ 'abcb'.rfind('b') }} {{ 'abcb'.count('b') }} {{ 'abc'.index('c') }}",
    "{{ ','.join(['a', 'b']) }}", "{{ '12'.isdigit() }} {{ 'a1'.isalnum() }} {{ 'ab'.isalpha() }} {{ ' '.isspace() }} {{ 'A'.isupper() }} {{ 'a'.islower() }} {{ '1'.isnumeric() }}", "{{ 'a{}c{}'.format('b', 1) }} {{ '{x}'.format(x=2) }}", "{{ 'a-b'.partition('-') }} {{ 'a'.zfill(3) }} {{ 'ab'.center(6) }}|", "{{ ' a b  c '.rsplit() }} {{ 'a b c'.rsplit(none, 1) }} {{ 'a-b-c'.rpartition('-') }} {{ 'x'.partition('-') }} {{ 'ab'.center(5, '*') }}{{ 'a'.center(4, '*') }}{{ 'a'.rjust(3) }}{{ 'a'.ljust(3) }}| {{ '-4'.zfill(4) }} {{ 'A B'.istitle() }} {{ 'abcb'.rindex('b') }} {{ '1'.isdecimal() }}", "{{ 'abc'.removeprefix('a') }} {{ 'abc'.removesuffix('c') }}",
    "{{ " + A + ".keys() | list }} {{ " + A + ".values() | list | length }} {{ " + A + ".get('x') }} {{ " + A + ".get('q') }} {{ " + A + ".get('q', 5) }} {{ 'x' in " + A + ".keys() }}", "{{ [1, 2, 1].count(1) }} {{ [1, 2].index(2) }}", "{% set l = [1] %}{% set l = l + [2] %}{{ l }}", "{% set _ = [1].append(2) %}", "{% set d = dict(a=1, b=2) %}{{ d }} {{ d.a }}", "{{ {'a': 1}.copy() }}",
    # Functions.
    "{{ strftime_now('%d %b %Y') }} {{ strftime_now('%Y-%m-%d %H:%M:%S') }} {{ strftime_now('%A, %B %-d') }}", "{{ raise_exception('no') }}", "{{ range(5) | list }} {{ range(2, 4) | list }}", "{{ bos_token + 'x' + eos_token }}", "{{ add_generation_prompt }} {{ tools | length }} {{ documents is none }}", "{{ namespace(a=1).a }}",
    "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system = messages[0]['content'] | trim %}{% else %}{% set loop_messages = messages %}{% endif %}{{ system }}{{ loop_messages | length }}",
    "{% if messages[3].content is string %}s{% elif messages[3].content is iterable %}{% for p in messages[3].content %}{% if p.type == 'text' %}{{ p.text }}{% elif p['type'] == 'image' %}<image>{% endif %}{% endfor %}{% endif %}",
    "{%- for tool in tools %}{{- '\\n' ~ (tool.function | tojson) }}{%- endfor %}", "{{ (messages[2].tool_calls[0].function.arguments | tojson) if messages[2].tool_calls[0].function.arguments is mapping else 'x' }}",
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 1) %}{{ loop.index0 }}{% endif %}{% endfor %}", "{{ messages[-1]['content'] | int + 1 }}{{ [messages[0].role, 'x'] | join('/') }}", "{{ {'a': {'b': [1, {'c': 2}]}}.a.b[1].c }}", "{% set x = {'a': 1} %}{% set y = dict(x, b=2) %}{{ y }}",
    "{{ 'it''s' }}", "{{ \"a'b\" }} {{ ['a\\'b', 'c\"d'] }}", "{% include 'x' %}", "{% import 'x' as y %}", "{{ x.y.z }}", "{{ 'a' | nonesuch }}", "{% nonesuch %}", "{{ 1 / 0 }}",
]


def main():
    rows = []
    for source in CONSTRUCTS:
        try:
            text = chat_template_utils.render_jinja_template(
                [MESSAGES], tools=TOOLS, chat_template=source, add_generation_prompt=True, bos_token="<BOS>", eos_token="<EOS>")[0][0]
        except Exception:
            text = None
        rows.append(json.dumps([source, text]))
    (HERE / "constructs.json").write_text(
        '{"messages":' + json.dumps(MESSAGES) + ',\n"tools":' + json.dumps(TOOLS) + ',\n"constructs":[\n' + ",\n".join(rows) + "\n]}\n")
    print(len(rows), "constructs,", sum(row.endswith("null]") for row in rows), "refused")


if __name__ == "__main__":
    main()
