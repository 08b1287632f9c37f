# ruff: noqa: E501
"""Into what words a text is cut, by the names of GGUF files; tokens as GPT-2 spells bytes.

The first are as llama.cpp cut it (its build of October 2026). Where it simplifies the model's own rule
(no NFC, accents apart from their letters, capitals within words), the second are the model's.
"""

TEXT = "I'm We'LL don't 'Tis HTTPServer2 fooBar x+=12345; 007\n\n  \tdef f(a, b):\r\n return \"q\"  # $5.00/kg...   \n\n~café naïve é 日本語ひらがなカタ 한국 привет नमस्ते 🙂 ①½ a_b `c` <|x|> end  "
_AS_LLAMA_CPP = {
    "gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum modern-bert exaone4 mpt olmo jais trillion granite-docling": "I 'm ĠWe ' LL Ġdon 't Ġ' Tis ĠHTTPServer 2 ĠfooBar Ġx += 12345 ; Ġ007 ĊĊĠĠ ĉ def Ġf ( a , Ġb ): čĊ Ġreturn Ġ\" q \" Ġ Ġ# Ġ$ 5 . 00 / kg ... ĠĠĠĊ Ċ ~ cafÃ© ĠnaÃ¯ ve Ġe Ìģ ĠæĹ¥æľ¬èªŀãģ²ãĤīãģĮãģªãĤ « ãĤ¿ ĠíķľêµŃ ĠÐ¿ÑĢÐ¸Ð²ÐµÑĤ Ġà¤¨à¤®à¤¸ à¥į à¤¤ à¥ĩ ĠðŁĻĤ ĠâĳłÂ½ Ġa _ b Ġ` c ` Ġ<| x |> Ġend ĠĠ",
    "starcoder refact command-r smollm codeshell exaone minerva-7b mellum2": "I 'm ĠWe ' LL Ġdon 't Ġ' Tis ĠHTTPServer 2 ĠfooBar Ġx += 1 2 3 4 5 ; Ġ 0 0 7 ĊĊĠĠ ĉ def Ġf ( a , Ġb ): čĊ Ġreturn Ġ\" q \" Ġ Ġ# Ġ$ 5 . 0 0 / kg ... ĠĠĠĊ Ċ ~ cafÃ© ĠnaÃ¯ ve Ġe Ìģ ĠæĹ¥æľ¬èªŀãģ²ãĤīãģĮãģªãĤ « ãĤ¿ ĠíķľêµŃ ĠÐ¿ÑĢÐ¸Ð²ÐµÑĤ Ġà¤¨à¤®à¤¸ à¥į à¤¤ à¥ĩ ĠðŁĻĤ Ġ âĳł Â½ Ġa _ b Ġ` c ` Ġ<| x |> Ġend ĠĠ",
    "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano minicpm5": "I 'm ĠWe 'LL Ġdon 't Ġ' Tis ĠHTTPServer 2 ĠfooBar Ġx += 123 45 ; Ġ 007 ĊĊ ĠĠ ĉdef Ġf (a , Ġb ):čĊ Ġreturn Ġ\" q \" Ġ Ġ# Ġ$ 5 . 00 /kg ... ĠĠĠĊĊ ~cafÃ© ĠnaÃ¯ve Ġe Ìģ ĠæĹ¥æľ¬èªŀãģ²ãĤīãģĮãģªãĤ « ãĤ¿ ĠíķľêµŃ ĠÐ¿ÑĢÐ¸Ð²ÐµÑĤ Ġà¤¨à¤®à¤¸ à¥įà¤¤ à¥ĩ ĠðŁĻĤ Ġ âĳłÂ½ Ġa _b Ġ` c ` Ġ<| x |> Ġend ĠĠ",
    "dbrx smaug-bpe chatglm-bpe": "I 'm ĠWe 'LL Ġdon 't Ġ' Tis ĠHTTPServer 2 ĠfooBar Ġx += 123 45 ; Ġ 007 ĊĊ ĠĠ ĉdef Ġf (a , Ġb ):čĊ Ġreturn Ġ\" q \" Ġ Ġ# Ġ$ 5 . 00 /kg ... ĠĠĠ ĊĊ ~cafÃ© ĠnaÃ¯ ve Ġe Ìģ ĠæĹ¥æľ¬èªŀãģ²ãĤīãģĮãģªãĤ « ãĤ¿ ĠíķľêµŃ ĠÐ¿ÑĢÐ¸Ð²ÐµÑĤ Ġà¤¨à¤®à¤¸ à¥į à¤¤ à¥ĩ ĠðŁĻĤ Ġ âĳłÂ½ Ġa _b Ġ` c ` Ġ<| x |> Ġend ĠĠ",
    "deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2 bailingmoe bailingmoe2 llada-moe": "I 'm ĠWe 'LL Ġdon 't Ġ' Tis ĠHTTPServer 2 ĠfooBar Ġx += 1 2 3 4 5 ; Ġ 0 0 7 ĊĊ ĠĠ ĉdef Ġf (a , Ġb ):čĊ Ġreturn Ġ\" q \" Ġ Ġ# Ġ$ 5 . 0 0 /kg ... ĠĠĠ ĊĊ ~cafÃ© ĠnaÃ¯ ve Ġe Ìģ ĠæĹ¥æľ¬èªŀãģ²ãĤīãģĮãģªãĤ « ãĤ¿ ĠíķľêµŃ ĠÐ¿ÑĢÐ¸Ð²ÐµÑĤ Ġà¤¨à¤®à¤¸ à¥į à¤¤ à¥ĩ ĠðŁĻĤ Ġ âĳł Â½ Ġa _b Ġ` c ` Ġ<| x |> Ġend ĠĠ",
    "deepseek-v3 hunyuan-dense joyai-llm": "I 'm ĠWe 'LL Ġdon 't Ġ' Tis ĠHTTPServer 2 ĠfooBar Ġx += 123 45 ; Ġ 007 ĊĊ ĠĠ ĉdef Ġf (a , Ġb ):čĊ Ġreturn Ġ\" q \" Ġ Ġ# Ġ$ 5 . 00 /kg ... ĠĠĠ ĊĊ ~caf Ã© ĠnaÃ¯ ve ĠeÌģ Ġ æĹ¥æľ¬èªŀãģ²ãĤīãģĮãģªãĤ« ãĤ¿ ĠíķľêµŃ ĠÐ¿ÑĢÐ¸Ð²ÐµÑĤ Ġà¤¨à¤®à¤¸à¥įà¤¤à¥ĩ ĠðŁĻĤ Ġ âĳłÂ½ Ġa _b Ġ` c ` Ġ<| x |> Ġend ĠĠ",
    "deepseek-coder": "I ' m ĠWe ' LL Ġdon ' t Ġ' Tis ĠHTTPServer 2 ĠfooBar Ġx += 1 2 3 4 5 ; Ġ 0 0 7 Ċ Ċ ĠĠ ĉdef Ġf ( a , Ġb ): č Ċ Ġreturn Ġ\" q \" Ġ Ġ# Ġ$ 5 . 0 0 / kg ... ĠĠĠ Ċ Ċ ~ cafÃ© ĠnaÃ¯ ve Ġe Ìģ Ġ æĹ¥æľ¬èªŀãģ²ãĤīãģĮãģªãĤ« ãĤ¿ Ġ íķľêµŃ ĠÐ¿ÑĢÐ¸Ð²ÐµÑĤ Ġ à¤¨ à¤® à¤¸ à¥į à¤¤ à¥ĩ ĠðŁĻ ĤĠ âĳł Â½ Ġa _ b Ġ` c `Ġ<| x |> Ġend ĠĠ",
    "falcon": "I ' m ĠWe ' LL Ġdon ' t Ġ ' Tis ĠHTTPServer 2 ĠfooBar Ġx += 123 45 ; Ġ 007 ĊĊĠĠ ĉ def Ġf ( a , Ġb ): čĊ Ġreturn Ġ \" q \" ĠĠ # Ġ $ 5 . 00 / kg ... ĠĠĠ ĊĊ ~ cafÃ© ĠnaÃ¯ ve Ġe Ìģ ĠæĹ¥æľ¬èªŀãģ²ãĤīãģĮãģªãĤ « ãĤ¿ ĠíķľêµŃ ĠÐ¿ÑĢÐ¸Ð²ÐµÑĤ Ġà¤¨à¤®à¤¸ à¥į à¤¤ à¥ĩ ĠðŁĻĤ ĠâĳłÂ½ Ġa _ b Ġ ` c ` Ġ <| x |> Ġend ĠĠ",
    "poro-chat bloom gpt3-finnish": "I'm ĠWe'LL Ġdon't Ġ'Tis ĠHTTPServer2 ĠfooBar Ġx+=12345; Ġ007 ĊĊĠĠĉ def Ġf ( a , Ġb ) : čĊ Ġreturn Ġ\"q\" Ġ Ġ# Ġ$5 . 00/kg ... ĠĠĠ ĊĊ ~cafÃ© ĠnaÃ¯ ve ĠeÌģ ĠæĹ¥æľ¬èªŀãģ²ãĤīãģĮãģªãĤ « ãĤ¿ ĠíķľêµŃ ĠÐ¿ÑĢÐ¸Ð²ÐµÑĤ Ġà¤¨à¤®à¤¸à¥įà¤¤à¥ĩ ĠðŁĻĤ ĠâĳłÂ½ Ġa_b Ġ`c` Ġ< | x | > Ġend ĠĠ",
    "viking": "I'm ĠWe'LL Ġdon't Ġ'Tis ĠHTTPServer 2 ĠfooBar Ġx+= 1 2 3 4 5 ; Ġ 0 0 7 ĊĊĠĠĉ def Ġf ( a , Ġb ) : čĊ Ġreturn Ġ\"q\" Ġ Ġ# Ġ$ 5 . 0 0 /kg ... ĠĠĠ ĊĊ ~cafÃ© ĠnaÃ¯ ve ĠeÌģ ĠæĹ¥æľ¬èªŀãģ²ãĤīãģĮãģªãĤ « ãĤ¿ ĠíķľêµŃ ĠÐ¿ÑĢÐ¸Ð²ÐµÑĤ Ġà¤¨à¤®à¤¸à¥įà¤¤à¥ĩ ĠðŁĻĤ Ġ âĳł Â½ Ġa_b Ġ`c` Ġ< | x | > Ġend ĠĠ",
    "seed-coder": "I 'm ĠWe 'LL Ġdon 't Ġ' Tis ĠHTTPServer 2 ĠfooBar Ġx += 1 2 3 4 5 ; Ġ 0 0 7 ĊĊ ĠĠ ĉdef Ġf (a , Ġb ): čĊ Ġreturn Ġ\" q \" Ġ Ġ# Ġ$ 5 . 0 0 /kg ... ĠĠĠ ĊĊ ~cafÃ© ĠnaÃ¯ ve Ġe Ìģ ĠæĹ¥æľ¬èªŀãģ²ãĤīãģĮãģªãĤ « ãĤ¿ ĠíķľêµŃ ĠÐ¿ÑĢÐ¸Ð²ÐµÑĤ Ġà¤¨à¤®à¤¸ à¥į à¤¤ à¥ĩ ĠðŁĻĤ Ġ âĳł Â½ Ġa _b Ġ` c ` Ġ<| x |> Ġend ĠĠ",
    "exaone-moe": "I 'm ĠWe 'LL Ġdon 't Ġ' TisĠHTTPServer 2 ĠfooBarĠx += 1 2 3 4 5 ; Ġ 0 0 7 ĊĊ ĠĠ ĉdef Ġf (a , Ġb ):č Ċ Ġreturn Ġ\" q \" Ġ Ġ# Ġ$ 5 . 0 0 /kg ... ĠĠĠ ĊĊ ~cafÃ©ĠnaÃ¯ veĠeÌģĠæĹ¥æľ¬èªŀãģ²ãĤīãģ Į ãģª ãĤ« ãĤ¿ĠíķľêµŃĠÐ¿ÑĢÐ¸Ð²ÐµÑĤĠ à¤¨ à¤® à¤¸à¥į à¤¤ à¥ĩ ĠðŁĻĤ Ġ âĳł Â½ Ġa _b Ġ` c ` Ġ<| x |> Ġend ĠĠ",
    "laguna": "I 'm ĠWe 'LL Ġdon 't Ġ' Tis ĠHTTPServer 2 ĠfooBar Ġx += 1 2 3 4 5 ; Ġ 0 0 7 ĊĊ ĠĠ ĉdef Ġf (a , Ġb ):č Ċ Ġreturn Ġ\" q \" Ġ Ġ# Ġ$ 5 . 0 0 /kg ... ĠĠĠ ĊĊ ~cafÃ© ĠnaÃ¯ ve Ġe Ìģ ĠæĹ¥æľ¬èªŀãģ²ãĤīãģĮãģªãĤ « ãĤ¿ ĠíķľêµŃ ĠÐ¿ÑĢÐ¸Ð²ÐµÑĤ Ġà¤¨à¤®à¤¸ à¥į à¤¤ à¥ĩ ĠðŁĻĤ Ġ âĳł Â½ Ġa _b Ġ` c ` Ġ<| x |> Ġend ĠĠ",
    "default": "I ' m ĠWe ' LL Ġdon ' t Ġ ' Tis ĠHTTPServer 2 ĠfooBar Ġx += 123 45 ; Ġ 007 ĊĊĠĠ ĉ def Ġf ( a , Ġb ): čĊ Ġreturn Ġ \" q \" ĠĠ # Ġ $ 5 . 00 / kg ... ĠĠĠ ĊĊ ~ cafÃ© ĠnaÃ¯ ve Ġe Ìģ ĠæĹ¥æľ¬èªŀãģ²ãĤīãģĮãģªãĤ « ãĤ¿ ĠíķľêµŃ ĠÐ¿ÑĢÐ¸Ð²ÐµÑĤ Ġà¤¨à¤®à¤¸ à¥į à¤¤ à¥ĩ ĠðŁĻĤ Ġ âĳłÂ½ Ġa _ b Ġ` c ` Ġ <| x |> Ġend ĠĠ",
}
_AS_THE_MODEL = {
    "qwen2": "I 'm ĠWe 'LL Ġdon 't Ġ' Tis ĠHTTPServer 2 ĠfooBar Ġx += 1 2 3 4 5 ; Ġ 0 0 7 ĊĊ ĠĠ ĉdef Ġf (a , Ġb ):čĊ Ġreturn Ġ\" q \" Ġ Ġ# Ġ$ 5 . 0 0 /kg ... ĠĠĠ ĊĊ ~cafÃ© ĠnaÃ¯ ve Ġ Ã© ĠæĹ¥æľ¬èªŀãģ²ãĤīãģĮãģªãĤ « ãĤ¿ ĠíķľêµŃ ĠÐ¿ÑĢÐ¸Ð²ÐµÑĤ Ġà¤¨à¤®à¤¸ à¥į à¤¤ à¥ĩ ĠðŁĻĤ Ġ âĳł Â½ Ġa _b Ġ` c ` Ġ<| x |> Ġend ĠĠ",
    "qwen35": "I 'm ĠWe 'LL Ġdon 't Ġ' Tis ĠHTTPServer 2 ĠfooBar Ġx += 1 2 3 4 5 ; Ġ 0 0 7 ĊĊ ĠĠ ĉdef Ġf (a , Ġb ):čĊ Ġreturn Ġ\" q \" Ġ Ġ# Ġ$ 5 . 0 0 /kg ... ĠĠĠ ĊĊ ~cafÃ© ĠnaÃ¯ ve Ġ Ã© ĠæĹ¥æľ¬èªŀãģ²ãĤīãģĮãģªãĤ « ãĤ¿ ĠíķľêµŃ ĠÐ¿ÑĢÐ¸Ð²ÐµÑĤ Ġà¤¨à¤®à¤¸à¥įà¤¤à¥ĩ ĠðŁĻĤ Ġ âĳł Â½ Ġa _b Ġ` c ` Ġ<| x |> Ġend ĠĠ",
    "tekken": "I 'm ĠWe 'LL Ġdon 't Ġ' Tis ĠHTTPServer 2 Ġfoo Bar Ġx += 1 2 3 4 5 ; Ġ 0 0 7 ĊĊ ĠĠ ĉdef Ġf (a , Ġb ):čĊ Ġreturn Ġ\" q \" Ġ Ġ# Ġ$ 5 . 0 0 /kg ... ĠĠĠĊĊ ~cafÃ© ĠnaÃ¯ve ĠeÌģ ĠæĹ¥æľ¬èªŀãģ²ãĤīãģĮãģªãĤ « ãĤ¿ ĠíķľêµŃ ĠÐ¿ÑĢÐ¸Ð²ÐµÑĤ Ġà¤¨à¤®à¤¸à¥įà¤¤à¥ĩ ĠðŁĻĤ Ġ âĳł Â½ Ġa _b Ġ` c ` Ġ<| x |> Ġend ĠĠ",
    "gpt-4o llama4 kanana2 talkie minimax-m2": "I'm ĠWe'LL Ġdon't Ġ' Tis ĠHTTPServer 2 Ġfoo Bar Ġx += 123 45 ; Ġ 007 ĊĊ ĠĠ ĉdef Ġf (a , Ġb ):čĊ Ġreturn Ġ\" q \" Ġ Ġ# Ġ$ 5 . 00 /kg ... ĠĠĠ ĊĊ ~cafÃ© ĠnaÃ¯ ve ĠeÌģ ĠæĹ¥æľ¬èªŀãģ²ãĤīãģĮãģªãĤ « ãĤ¿ ĠíķľêµŃ ĠÐ¿ÑĢÐ¸Ð²ÐµÑĤ Ġà¤¨à¤®à¤¸à¥įà¤¤à¥ĩ ĠðŁĻĤ Ġ âĳłÂ½ Ġa _b Ġ` c ` Ġ<| x |> Ġend ĠĠ",
    "tiny_aya cohere2moe": "I'm ĠWe'LL Ġdon't Ġ' Tis ĠHTTPServer 2 Ġfoo Bar Ġx += 12 345 ; Ġ 007 ĊĊ ĠĠ ĉdef Ġf (a , Ġb ):čĊ Ġreturn Ġ\" q \" Ġ Ġ# Ġ$ 5 . 00 /kg ... ĠĠĠ ĊĊ ~cafÃ© ĠnaÃ¯ ve ĠeÌģ ĠæĹ¥æľ¬èªŀãģ²ãĤīãģĮãģªãĤ « ãĤ¿ ĠíķľêµŃ ĠÐ¿ÑĢÐ¸Ð²ÐµÑĤ Ġà¤¨à¤®à¤¸à¥įà¤¤à¥ĩ ĠðŁĻĤ Ġ âĳłÂ½ Ġa _b Ġ` c ` Ġ<| x |> Ġend ĠĠ",
}
SPLITS = {
    pre: words.split(" ")
    for pres, words in (_AS_LLAMA_CPP | _AS_THE_MODEL).items()
    for pre in pres.split()
}
