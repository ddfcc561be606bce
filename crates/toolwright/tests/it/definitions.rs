use serde_json::{Value, json};
use toolwright::core::catalogue::{CallScope, RegisteredTool};
use toolwright::core::{Session, Tool, ToolContext, ToolDefinition, ToolError, ToolOutput};
use toolwright::schemars::JsonSchema;
use toolwright::serde::{Deserialize, Serialize};
use toolwright::tool;

/// The definition as JSON, after it has passed registration and its own JSON form.
fn definition(tool: &dyn Tool) -> Value {
    let definition = tool.definition();
    let value = serde_json::to_value(&definition).expect("json");
    assert_eq!(serde_json::from_value::<ToolDefinition>(value.clone()).expect("back"), definition);
    RegisteredTool::own(definition).expect("registers");
    value
}

/// A place on the map.
#[derive(Deserialize, Serialize, JsonSchema)]
#[serde(crate = "toolwright::serde")]
#[schemars(crate = "toolwright::schemars")]
struct Place {
    /// City or village.
    city: String,
}

fn anywhere(_: &Value, _: &Session) -> CallScope {
    CallScope::Workspace
}

/// Finds the places
/// near one.
///
/// - nearest first
/// - at most `limit`
///
/// # Errors
/// Not part of the description.
#[tool(
    id = "geo:near@2.1.0",
    type_name = FindNear,
    scope = anywhere,
    title = "Places nearby",
    tags = ["geo", "search"],
    aliases = ["nearby"],
    examples = [{"place": {"city": "Bonn"}, "limit": 3}, {"place": {"city": "Ulm"}, "kind": null, "limit": 1}],
    strict = false,
    safe = false,
    effects(read_only, open_world = false),
    capabilities = {"streaming": true},
    allowed_roles = ["guide"],
    mode = background,
    concurrency = exclusive,
    timeout = "1.5s",
    auto_background_after = "1s",
    max_output = 4096,
    queue = "maps",
    cache_ttl = "2h",
    model_preference(preferred_model = "a/b", fallback_models = ["c/d"], max_tokens = 9, temperature = 0.5),
    recommended_threshold = 90,
    contribution = "Ask geo for places.",
    documentation = concat!("All about ", "places."),
    manual_required,
    provider_schema = {"type": "object", "properties": {"place": {"type": "object"}}},
    output_schema = {"type": "object", "required": ["places"]},
    body_argument = "kind",
    sandbox_profile = "pure",
    approval = "always",
    threat_level = "low",
    cost_hint = {"usd": 0.01, "big": 5000000000, "less": -3},
    on_output_mismatch = error,
    meta = {"owner": "maps", "x": [1, null, true]},
)]
async fn near(
    /// Where to look from.
    place: Place,
    #[serde(default)]
    #[schemars(range(max = 50))]
    limit: u8,
    /// Only of this kind.
    kind: Option<String>,
    #[serde(rename = "lang", default = "english")] language: String,
) -> Result<ToolOutput, ToolError> {
    Ok(ToolOutput::text(format!("{} {limit} {kind:?} {language}", place.city)))
}

fn english() -> String {
    "en".to_owned()
}

#[test]
fn every_attribute_arrives_in_the_definition() {
    assert_eq!(
        definition(&FindNear),
        json!({
            "id": "geo:near@2.1.0",
            "title": "Places nearby",
            "description": "Finds the places near one.\n\n- nearest first\n- at most `limit`",
            "parameters": {
                "type": "object",
                "properties": {
                    "place": {"$ref": "#/$defs/Place", "description": "Where to look from."},
                    "limit": {"type": "integer", "format": "uint8", "minimum": 0, "maximum": 50, "default": 0},
                    "kind": {"type": ["string", "null"], "description": "Only of this kind."},
                    "lang": {"type": "string", "default": "en"},
                },
                "additionalProperties": false,
                "required": ["place"],
                "$defs": {
                    "Place": {
                        "description": "A place on the map.",
                        "type": "object",
                        "properties": {"city": {"description": "City or village.", "type": "string"}},
                        "required": ["city"],
                    },
                },
            },
            "output_schema": {"type": "object", "required": ["places"]},
            "tags": ["geo", "search"],
            "aliases": ["nearby"],
            "examples": [
                {"place": {"city": "Bonn"}, "limit": 3},
                {"place": {"city": "Ulm"}, "kind": null, "limit": 1},
            ],
            "strict": false,
            "safe": false,
            "effects": {"read_only": true, "destructive": false, "idempotent": true, "open_world": false},
            "capabilities": {"streaming": true},
            "allowed_roles": ["guide"],
            "mode": "background",
            "concurrency": "exclusive",
            "timeout": "1500ms",
            "auto_background_after": "1s",
            "max_output": 4096,
            "queue": "maps",
            "cache_ttl": "2h",
            "allow_no_schema": false,
            "model_preference": {
                "preferred_model": "a/b", "fallback_models": ["c/d"], "max_tokens": 9, "temperature": 0.5,
            },
            "recommended_threshold": 90,
            "contribution": "Ask geo for places.",
            "documentation": "All about places.",
            "manual_required": true,
            "provider_schema": {"type": "object", "properties": {"place": {"type": "object"}}},
            "body_argument": "kind",
            "sandbox_profile": "pure",
            "approval": "always",
            "threat_level": "low",
            "cost_hint": {"usd": 0.01, "big": 5_000_000_000_u64, "less": -3},
            "on_output_mismatch": "error",
            "meta": {"owner": "maps", "x": [1, null, true]},
        })
    );
    let session = toolwright::core::Session {
        id: toolwright::core::SessionId::new("s"),
        principal: toolwright::core::Principal::owner(),
        root: "/".into(),
        agent: None,
    };
    assert_eq!(FindNear.scope(&json!({}), &session), CallScope::Workspace);
}

/// Says what time it is.
#[tool(namespace = "clock")]
async fn now(_context: ToolContext) -> String {
    "noon".to_owned()
}

#[test]
fn missing_annotations_mean_defaults_and_danger() {
    assert_eq!(
        definition(&Now),
        json!({
            "id": "clock:now@1.0.0",
            "description": "Says what time it is.",
            "parameters": {"type": "object", "properties": {}, "additionalProperties": false},
            "safe": true,
            "effects": {"read_only": false, "destructive": true, "idempotent": false, "open_world": true},
            "mode": "direct",
            "concurrency": "safe",
            "allow_no_schema": false,
            "recommended_threshold": 100,
            "manual_required": false,
            "on_output_mismatch": "warn",
        })
    );
}

/// Moves a place.
#[tool(namespace = "geo", name = "move-to", version = "0.3.0", effects(destructive = false, idempotent))]
async fn r#move(Place { city }: Place) -> Result<Place, ToolError> {
    Ok(Place { city })
}

#[test]
fn argument_and_result_structs_give_the_schemas() {
    let definition = definition(&Move);
    let schema = json!({
        "type": "object",
        "properties": {"city": {"description": "City or village.", "type": "string"}},
        "required": ["city"],
    });
    assert_eq!(definition["id"], "geo:move-to@0.3.0");
    assert_eq!(definition["parameters"], schema, "the arguments are not described by their Rust type");
    assert_eq!(definition["output_schema"]["properties"], schema["properties"]);
    assert_eq!(
        definition["effects"],
        json!({"read_only": false, "destructive": false, "idempotent": true, "open_world": true})
    );
}
