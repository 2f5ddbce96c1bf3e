"""OpenAI's Responses, in which Codex, the Agents SDK and Vercel's AI SDK speak."""
