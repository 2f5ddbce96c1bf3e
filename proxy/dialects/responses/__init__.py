"""OpenAI's Responses API, used by Codex, the Agents SDK and Vercel's AI SDK."""
