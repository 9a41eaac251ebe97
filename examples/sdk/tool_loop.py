#!/usr/bin/env python3
"""The loop of every agent: ask the model, run what it wants to run, tell it what came out, until it has an answer.

A scripted model stands in for a real one. It is asked through the same messages as OpenAI's Responses interface: to use
that, call `openai.OpenAI().responses.create(model=…, input=messages, tools=[tool.definition]).output`.
"""

import json

from belljar.integrations.openai import OpenAITool


class ScriptedModel:
    """First makes a mistake, then reads the error and corrects it, then answers."""

    def respond(self, messages):
        outputs = [message["output"] for message in messages if message.get("type") == "function_call_output"]
        if not outputs:
            return self.call("print(sum(n for n in range(1, 101) if n % 3 = 0))")
        if "SyntaxError" in outputs[-1]:
            return self.call("print(sum(n for n in range(1, 101) if n % 3 == 0))")
        return {"type": "message", "text": f"The sum is {outputs[-1].split()[-1]}."}

    @staticmethod
    def call(code):
        arguments = json.dumps({"language": "python", "code": code})
        return {"type": "function_call", "call_id": "call_1", "name": "run_code", "arguments": arguments}


def answer(question, model, tool, most_turns=5):
    messages = [{"role": "user", "content": question}]
    for _ in range(most_turns):
        item = model.respond(messages)
        if item["type"] != "function_call":
            return item["text"]
        result = tool.handle(item)
        print("model runs:", json.loads(item["arguments"])["code"])
        print("it reads:", result["output"].splitlines()[0])
        messages += [item, result]
    return "no answer"


if __name__ == "__main__":
    print(answer("What is the sum of the multiples of 3 up to 100?", ScriptedModel(), OpenAITool(timeout=10)))
