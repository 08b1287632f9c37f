# ruff: noqa: E501
"""Chat templates in the shapes that models are published with, shortened."""

TEMPLATES = {
    "chatml": (
        "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content']"
        " + '<|im_end|>' + '\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    ),
    "chatml with a default": (
        "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
        "{{ '<|im_start|>system\nYou are a helpful assistant<|im_end|>\n' }}{% endif %}"
        "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    ),
    "chatml as text": (
        "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content | trim }}"
        "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    ),
    "roles between bars": (
        "{% for message in messages %}{{'<|' + message['role'] + '|>' + '\n' + message['content']"
        " + '<|end|>' + '\n'}}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}"
    ),
    "zephyr": (
        "{% for message in messages %}{% if message['role'] == 'user' %}"
        "{{ '<|user|>\n' + message['content'] + eos_token }}{% elif message['role'] == 'system' %}"
        "{{ '<|system|>\n' + message['content'] + eos_token }}"
        "{% elif message['role'] == 'assistant' %}"
        "{{ '<|assistant|>\n'  + message['content'] + eos_token }}{% endif %}"
        "{% if loop.last and add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}{% endfor %}"
    ),
    "llama-2": (
        "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
        "{% set system_message = messages[0]['content'] %}{% else %}"
        "{% set loop_messages = messages %}{% set system_message = false %}{% endif %}"
        "{% for message in loop_messages %}"
        "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant') }}"
        "{% endif %}{% if loop.index0 == 0 and system_message != false %}"
        "{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}"
        "{% else %}{% set content = message['content'] %}{% endif %}"
        "{% if message['role'] == 'user' %}"
        "{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
        "{% elif message['role'] == 'assistant' %}"
        "{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
    ),
    "llama-3": (
        "{% set loop_messages = messages %}{% for message in loop_messages %}"
        "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'"
        " + message['content'] | trim + '<|eot_id|>' %}"
        "{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}"
        "{% endfor %}{% if add_generation_prompt %}"
        "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
    ),
    "llama-3.1": """\
{{- bos_token }}
{%- if not date_string is defined %}{%- set date_string = "26 Jul 2024" %}{%- endif %}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}{%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}{{- "Environment: ipython\\n" }}{%- endif %}
{{- "Cutting Knowledge Date: December 2023\\n" }}
{{- "Today Date: " + date_string + "\\n\\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
        {{- message['content'] | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
""",
    "mistral": (
        "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}"
        "{{ '[INST] ' + message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' %}"
        "{{ message['content'] + eos_token}}{% else %}"
        "{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}"
    ),
    "gemma": (
        "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
        "{{ raise_exception('System role not supported') }}{% endif %}"
        "{% for message in messages %}{% if (message['role'] == 'assistant') %}"
        "{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}"
        "{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}"
        "{% endfor %}{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}"
    ),
    "qwen-3": """\
{%- set ns = namespace(last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- if ns.last == messages|length - 1 and message.role == "user" %}
        {%- set ns.last = messages|length - loop.index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role in ["user", "system"] %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set content = message.content %}{%- set reasoning = '' %}
        {%- if message.reasoning_content is defined and message.reasoning_content is not none %}
            {%- set reasoning = message.reasoning_content %}
        {%- elif '</think>' in message.content %}
            {%- set content = message.content.split('</think>')[-1].lstrip('\\n') %}
            {%- set reasoning = message.content.split('</think>')[0].rstrip('\\n') %}
            {%- set reasoning = reasoning.split('<think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last or reasoning %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning.strip('\\n') }}
            {{- '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {{- '<|im_start|>user\\n<tool_response>\\n' ~ message.content ~ '\\n<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
""",
    "deepseek": (
        "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}"
        "{% endif %}{% set ns = namespace(is_first=false, system_prompt='') %}"
        "{%- for message in messages %}{%- if message['role'] == 'system' %}"
        "{% set ns.system_prompt = ns.system_prompt + message['content'] %}{%- endif %}{%- endfor %}"
        "{{bos_token}}{{ns.system_prompt}}{%- for message in messages %}"
        "{%- if message['role'] == 'user' %}{{'<|user|>' + message['content']}}{%- endif %}"
        "{%- if message['role'] == 'assistant' and message['content'] is not none %}"
        "{% set content = message['content'] %}{% if '</think>' in content %}"
        "{% set content = content.split('</think>')[-1] %}{% endif %}"
        "{{'<|assistant|>' + content + eos_token}}{%- endif %}{%- endfor -%}"
        "{% if add_generation_prompt %}{{'<|assistant|><think>\\n'}}{% endif %}"
    ),
    "command-r": (
        "{{ bos_token }}{% set preamble = 'You are Command.' %}"
        "{% if messages[0]['role'] == 'system' %}{% set preamble = messages[0]['content'] %}"
        "{% set messages = messages[1:] %}{% endif %}"
        "{{ '<|im_start|><|system|>' + preamble + '<|im_end|>' }}"
        "{% for message in messages %}{% set content = message['content'] %}"
        "{% if message['role'] == 'user' %}{{ '<|im_start|><|user|>' + content.strip() }}"
        "{% else %}{{ '<|im_start|><|assistant|>'  + content.strip() }}{% endif %}<|im_end|>"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|><|assistant|>' }}{% endif %}"
    ),
    "vicuna": (
        "{% if messages[0]['role'] == 'system' %}{{ messages[0]['content'].strip() + '\n\n' }}"
        "{% set rest = messages[1:] %}{% else %}{% set rest = messages %}{% endif %}"
        "{% for message in rest %}{% if message['role'] == 'user' %}"
        "{{ 'USER: ' + message['content'].strip() + ' ' }}{% else %}"
        "{{ 'ASSISTANT: ' + message['content'].strip() + eos_token }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
    ),
    "alpaca": (
        "{% for message in messages %}{% if message['role'] == 'user' %}### Instruction:\n"
        "{{ message['content']|trim }}\n\n{% elif message['role'] == 'assistant' %}### Response:\n"
        "{{ message['content']|trim -}}{{ eos_token }}\n{% else %}{{ message['content'] }}\n\n"
        "{% endif %}{% endfor %}{% if add_generation_prompt %}### Response:\n{% endif %}"
    ),
    "macros": (
        "{%- macro turn(role, text, end='<|im_end|>') -%}<|im_start|>{{ role }}\n{{ text }}{{ end }}"
        "{%- endmacro -%}{%- for message in messages %}"
        "{{ turn(message.role, message.content, end='<|im_end|>\n') }}{%- endfor -%}"
        "{%- if add_generation_prompt %}{{ '<|im_start|>' ~ 'assistant' ~ '\n' }}{%- endif -%}"
    ),
    "blocks and joins": (
        "{% set parts = [] %}{% for message in messages %}"
        "{% set part %}<|{{ message.role }}|>{{ message.content }}{% endset %}"
        "{% set _ = none %}{{ [part, '<|end|>'] | join('\n') }}{% endfor %}"
        "{{ ['<|', 'assistant', '|>'] | join if add_generation_prompt }}"
    ),
    "break and continue": (
        "{% for message in messages %}{% if message.role == 'system' %}{% continue %}{% endif %}"
        "{{ '<|' ~ message.role ~ '|>' ~ message.content }}"
        "{% if message.content == 'stop' %}{% break %}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    ),
    "generation": (
        "{% for message in messages %}<|im_start|>{{ message.role }}\n"
        "{% if message.role == 'assistant' %}{% generation %}{{ message.content }}<|im_end|>"
        "{% endgeneration %}{% else %}{{ message.content }}<|im_end|>{% endif %}\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    ),
    "replaced and cut": (
        "{% set form = '<|im_start|>ROLE\nTEXT<|im_end|>X' %}{% for message in messages %}"
        "{{ form[:-1].replace('ROLE', message.role).replace('TEXT', message.content.strip()) }}"
        "{{ '\n' }}{% endfor %}{{ '<|im_start|>assistant\n' if add_generation_prompt else '' }}"
    ),
    "json": (
        "{% for message in messages %}<|im_start|>{{ message.role }}\n"
        "{{ {'b': message.content, 'a': [1, none, true]} | tojson }}"
        "{{ message | tojson(indent=2, ensure_ascii=true, sort_keys=true) }}"
        "{{ [1, 'é', message.role] | tojson(separators=(',', ':')) }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    ),
    "tools and documents": (
        "{% if tools is none and documents is none %}no tools{% elif tools is defined %}some"
        "{% endif %}{% if sep_token is defined %}{{ sep_token }}{% endif %}"
        "{% if not cls_token is defined %}<|system|>{% endif %}"
        "{% for message in messages %}<|user|>{{ message.content }}"
        "{% if message.name is defined %} ({{ message.name }}){% endif %}<|end|>{% endfor %}"
        "{{ pad_token if add_generation_prompt }}{{ unk_token }}"
    ),
    "capitals": (
        "{% for message in messages %}{{ '<|IM_START|>' | lower }}{{ message.role | upper }}\n"
        "{{ message.content | trim | capitalize }}{{ '<|im_' ~ 'end|>' }}\n{% endfor %}"
        "{% if add_generation_prompt %}{{ '  <|im_start|>  '.strip() + 'assistant\n' }}{% endif %}"
    ),
}
