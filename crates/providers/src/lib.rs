//! Tool sources behind one trait: built-in tools, MCP servers, REST endpoints.
