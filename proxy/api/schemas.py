"""JSON schemas of bodies, for `/openapi.json`; docs/api-live.md explains the fields of Spillway's own objects.

An object is written as the names of its fields, each followed by a colon and its type (default: string). A type is one of JSON's or
another object here, with `[]` for a list and `?` if it may be null. `*Name` includes the fields of that object.
"""

from typing import Any

_SCALARS: dict[str, dict[str, Any]] = {
    **{name: {"type": name} for name in ("string", "integer", "number", "boolean", "object")},
    "any": {},
}
_OBJECTS = {
    # Objects of OpenAI, Anthropic and Ollama, with the fields that Spillway reads; all other fields pass unchanged.
    "Error": "message type code:any param:string?",
    "ErrorBody": "error:Error",
    "Message": "role content:any tool_calls:object[]? tool_call_id:string?",
    "Model": "id object created:integer owned_by context_length:integer? supports_tools:boolean? spillway:object",
    "Models": "object data:Model[]",
    "ChatRequest": "model messages:Message[] stream:boolean stream_options:object max_tokens:integer "
    "max_completion_tokens:integer n:integer stop:any tools:object[] tool_choice:any response_format:object user",
    "Usage": "prompt_tokens:integer completion_tokens:integer total_tokens:integer spillway:object",
    "Choice": "index:integer message:Message finish_reason:string?",
    "ChatAnswer": "id object created:integer model choices:Choice[] usage:Usage",
    "ResponsesRequest": "model input:any instructions:string? previous_response_id:string? conversation:any store:boolean "
    "stream:boolean max_output_tokens:integer? tools:object[] tool_choice:any truncation context_management:object[]",
    "ResponsesAnswer": "id object created_at:number status model output:object[] usage:object? error:object? "
    "incomplete_details:object? previous_response_id:string? store:boolean",
    "CompactedAnswer": "id object created_at:number output:object[] usage:object",
    "MessagesRequest": "model messages:Message[] system:any max_tokens:integer stream:boolean stop_sequences:string[] "
    "tools:object[] tool_choice:object thinking:object context_management:object metadata:object",
    "MessagesAnswer": "id type role model content:object[] stop_reason:string? stop_sequence:string? usage:object",
    "OllamaRequest": "model messages:Message[] stream:boolean tools:object[] format:any options:object keep_alive:any think:any",
    "OllamaAnswer": "model created_at message:Message done:boolean done_reason prompt_eval_count:integer eval_count:integer",
    "Tokens": "input_tokens:integer",
    "Version": "version spillway",
    "Tag": "name model modified_at size:integer digest details:object capabilities:string[]",
    "Tags": "models:Tag[]",
    "ShowRequest": "model",
    "Shown": "license modelfile parameters template details:object model_info:object capabilities:string[] modified_at",
    "Deleted": "id object deleted:boolean",
    # Spillway's own
    "Health": "status",
    "Readiness": "status backends:object store",
    "Session": "role:string? content:boolean memory:boolean version base_url",
    "Checkpoint": "kind covered:integer summary created_at:number",
    "Bar": "system:integer tools:integer summary:integer recalled:integer tail:integer answer:integer room:integer?",
    "Row": "id title:string? named:boolean owner backend model dialect window:integer? error:string? client "
    "background:boolean turns:integer messages:integer? first_at:number last_at:number state request stoppable:boolean "
    "streamed:boolean trigger:integer? target:integer? pause:integer? prompt:integer? answer:integer fill:number? bar:Bar? "
    "tokens_per_second:number? compactions:integer checkpoint:Checkpoint? sent_tokens:integer not_sent_tokens:integer",
    "Rows": "conversations:Row[]",
    "Reduced": "kind results_cleaned:integer messages_before:integer messages_after:integer tokens_before:integer "
    "tokens_after:integer ratio:number seconds:number summary rungs:string[] cut:integer[]",
    "MalformedCall": "reason tool form provider",
    "Outcome": "id conversation:string? owner at:number dialect backend model status:integer error:string? action kind tools "
    "doing shaped:object streamed:boolean running:boolean window:integer? tokens_before:integer? tokens_after:integer? "
    "saved:integer saved_answer:integer rungs:string[] attempts:integer compactions:integer reduced:Reduced[] compaction_seconds:number "
    "summaries:integer unfit:integer summary recalled:integer recalled_tokens:integer restored:integer afforded:integer left_out:integer "
    "left_out_of:integer cut_earlier:integer[] repeated:integer? reused:integer? unlike malformed_calls:MalformedCall[] "
    "leaked_calls:integer repeated_calls:integer searches:integer refusals:integer pauses:integer resumes:integer conclusions:integer "
    "unfinished:boolean stopped:boolean sent_as covered:integer sentence first_byte:number? seconds:number prompt_tokens:integer? completion_tokens:integer?",
    "Outcomes": "outcomes:Outcome[] next:string?",
    "Event": "at:number event",
    "Turn": "*Outcome messages:integer? checkpoint:Checkpoint? events:Event[]",
    "Conversation": "*Row timeline:Turn[]",
    "Block": "index:integer text appended rules:string[] by tokens:integer",
    "Verdict": "at:number model verdict tokens:integer",
    "Summary": "conversation checkpoint:Checkpoint tokens_before:integer tokens_after:integer blocks:Block[] "
    "verdicts:Verdict[] note messages:Message[] earlier:integer",
    "CompactRequest": "focus",
    "Compacted": "compacted:boolean tokens_before:integer? tokens_after:integer? summary:string? message request",
    "Pin": "text said:boolean",
    "Pins": "pins:Pin[] tokens:integer most:integer?",
    "PinRequest": "pins:string[]",
    "Forgotten": "rejected:boolean summary:Summary?",
    "Statement": "id text said_at:number",
    "Memory": "statements:Statement[]?",
    "Unremembered": "deleted:integer",
    "DiffRow": "what role sent:integer[] forwarded:integer? before:string? after:string? tokens:integer",
    "Diff": "request same:boolean tokens:object counts:object tools:object rows:DiffRow[]",
    "Stopped": "stopped:boolean",
    "LessonForgotten": "forgotten:boolean",
    "Savings": "requests:integer since:number? tokens:object seconds:object rescued:object",
    "KnownBackend": "name url kind:string? models:object",
    "KnownModels": "backends:KnownBackend[] summary_model:string? names:string[]",
    "SummaryModel": "summary_model:string?",
    "Explanation": "model backend window:integer? prompt_tokens:integer prompt_tokens_upper:integer counted_by fill:number? "
    "parts:object tools:object? shaped:object checkpoint:object? recalled:object? action messages:Message[] budget:object "
    "limits:object note",
}


def schema(name: str) -> dict[str, Any]:
    """Build the schema of the object with this name."""
    properties: dict[str, Any] = {}
    for each in _OBJECTS[name].split():
        if each.startswith("*"):
            properties |= schema(each[1:])["properties"]
        else:
            field, _, kind = each.partition(":")
            properties[field] = _of_kind(kind or "string")
    return {"title": name, "type": "object", "properties": properties}


def _of_kind(kind: str) -> dict[str, Any]:
    if kind.endswith("?"):
        return {"anyOf": [_of_kind(kind[:-1]), {"type": "null"}]}
    if kind.endswith("[]"):
        return {"type": "array", "items": _of_kind(kind[:-2])}
    return _SCALARS[kind] if kind in _SCALARS else schema(kind)


def answers(name: str, *, or_stream: bool = False) -> dict[int | str, dict[str, Any]]:
    """Describe the responses of a route: this object, a stream of events if `or_stream`, or an error."""
    media: dict[str, Any] = {"application/json": {"schema": schema(name)}}
    if or_stream:
        media["text/event-stream"] = {"schema": _SCALARS["string"]}
    failed = {"application/json": {"schema": schema("ErrorBody")}}
    return {200: {"description": name, "content": media}, "4XX": {"description": "Error", "content": failed}}


def takes(name: str, *required: str) -> dict[str, Any]:
    """Describe the body of a route's requests, with its required fields."""
    body = {"application/json": {"schema": {**schema(name), "required": list(required)}}}
    return {"requestBody": {"required": True, "content": body}}
