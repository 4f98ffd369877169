"""Fields, schemas and OpenAPI operations of OpenAI's Files and Batch APIs."""
