#!/usr/bin/env python3
"""A model that always wants the same: it runs one command, and is done. Speaks as much of three protocols as the agents ask for (Anthropic's Messages,
OpenAI's Responses, Gemini's generateContent), on a port of its own, which it prints; what it was told behind the command goes to a file.

  model.py COMMAND TOLD
"""

import http.server
import json
import sys

COMMAND, TOLD = sys.argv[1:]


def told(conversation, sign):
    """Whether the command has run already; what is said then is written down."""
    text = json.dumps(conversation)
    if sign not in text:
        return False
    with open(TOLD, "w") as file:
        file.write(text)
    return True


def messages(asked):
    usage = {"input_tokens": 1, "output_tokens": 1}
    if told(asked.get("messages"), "tool_result") or not any(tool.get("name") == "Bash" for tool in asked.get("tools", [])):
        block, delta, stop = {"type": "text", "text": ""}, {"type": "text_delta", "text": "Done."}, "end_turn"
    else:
        block = {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps({"command": COMMAND, "description": "as told"})}
        stop = "tool_use"
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude", "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
    yield {"type": "message_start", "message": message}
    yield {"type": "content_block_start", "index": 0, "content_block": block}
    yield {"type": "content_block_delta", "index": 0, "delta": delta}
    yield {"type": "content_block_stop", "index": 0}
    yield {"type": "message_delta", "delta": {"stop_reason": stop, "stop_sequence": None}, "usage": usage}
    yield {"type": "message_stop"}


def responses(asked):
    if told(asked.get("input"), "function_call_output"):
        item = {"type": "message", "role": "assistant", "id": "msg_1", "content": [{"type": "output_text", "text": "Done."}]}
    else:
        item = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "exec_command", "arguments": json.dumps({"cmd": COMMAND})}
    usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2, "input_tokens_details": None, "output_tokens_details": None}
    yield {"type": "response.created", "response": {"id": "resp_1"}}
    yield {"type": "response.output_item.done", "output_index": 0, "item": item}
    yield {"type": "response.completed", "response": {"id": "resp_1", "usage": usage}}


def contents(asked):
    if told(asked.get("contents"), "functionResponse"):
        part = {"text": "Done."}
    elif asked.get("tools"):
        part = {"functionCall": {"name": "run_shell_command", "args": {"command": COMMAND, "description": "as told"}}}
    else:
        part = {"text": "{}"}
    candidate = {"content": {"role": "model", "parts": [part]}, "finishReason": "STOP", "index": 0}
    return {"candidates": [candidate], "usageMetadata": {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}}


class Model(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
        if "generateContent" in self.path:
            self.say("application/json", [json.dumps(contents(asked))])
        elif "streamGenerateContent" in self.path:
            self.say("text/event-stream", [f"data: {json.dumps(contents(asked))}\r\n\r\n"])
        else:
            events = responses(asked) if "responses" in self.path else messages(asked)
            self.say("text/event-stream", [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events])

    def say(self, kind, parts):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.end_headers()
        for part in parts:
            self.wfile.write(part.encode())

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Model)
print(server.server_port, flush=True)
server.serve_forever()
