//! For tests only: a scripted model server, a misbehaving MCP server, fixtures.
