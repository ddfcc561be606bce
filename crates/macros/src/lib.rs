//! `#[tool]`: an async function becomes a tool.
//!
//! Read in this order: [`tool`] is the entry; `grammar` reads the words in the attribute, `settings` says
//! which keys there are, `kind` what each takes, `function` reads the signature, `expand` writes the code.
//! Everything behind the entry works on `proc_macro2` streams and is tested as a plain function.

mod expand;
mod function;
mod grammar;
mod json;
mod kind;
mod settings;
#[cfg(test)]
mod tests;
mod text;

/// Makes a tool of an async function.
///
/// The function stays as it is and can be called and tested as before. Beside it stands a unit struct with
/// the function's name in camel case (`read_file` → `ReadFile`) that implements `toolwright::core::Tool`:
///
/// ```ignore
/// /// Adds two numbers.
/// #[tool(namespace = "math", effects(read_only, open_world = false))]
/// async fn add(
///     /// First number.
///     a: i64,
///     /// Second number.
///     b: i64,
/// ) -> Result<String, ToolError> {
///     Ok((a + b).to_string())
/// }
///
/// let provider = StaticProvider::new("math", ProviderKind::Native, vec![Arc::new(Add)])?;
/// ```
///
/// # The function
/// - The doc comment up to its first heading is the description. There must be one.
/// - Each parameter is an argument; its doc comment is the argument's description, `#[serde(…)]` and
///   `#[schemars(…)]` on it mean what they mean on a field, and an `Option` may be left out.
/// - A single parameter of a type of yours, without a doc comment, is the struct of all arguments. It derives
///   `Deserialize` and `JsonSchema`, and its fields are the arguments.
/// - A parameter `&ToolContext` (or `ToolContext`), anywhere, gets the context of the call.
/// - It returns `Result<T, E>` or `T`: a `String` is the text of the result, a `ToolOutput` goes as it is, any
///   other `T: Serialize + JsonSchema` is the structured result, and its schema is the output schema. `E` is
///   `ToolError` or converts into it.
///
/// # The attribute
/// Identity: `id = "namespace:name@1.0.0"`, or `namespace` with, if they differ from the function's name and
/// 1.0.0, `name` and `version`. All else is optional and named like the field of `ToolDefinition` that it sets:
///
/// | key | like this |
/// |---|---|
/// | `title`, `description`, `contribution`, `documentation`, `queue`, `body_argument`, `approval`, `threat_level` | `title = "Add"`; also a constant or `include_str!("manual.md")` |
/// | `tags`, `aliases`, `allowed_roles` | `tags = ["math", "exact"]` |
/// | `examples` | `examples = [{"a": 1, "b": 2}]`: objects, as JSON |
/// | `effects` | `effects(read_only, open_world = false)`; what is not named is as bad as it can be, but what only reads neither destroys nor adds up |
/// | `safe`, `strict`, `manual_required` | `strict`, `safe = false` |
/// | `mode` | `direct`, `background` or `stateful` |
/// | `concurrency` | `safe` or `exclusive` |
/// | `on_output_mismatch` | `warn` or `error` |
/// | `timeout`, `idle_timeout`, `auto_background_after`, `cache_ttl` | `timeout = "30s"`; units `ms s m h d w` |
/// | `retries` | `retries = 2` |
/// | `max_output` | `max_output = 4096`, in bytes |
/// | `sandbox_profile` | `sandbox_profile = "read-only"`: `pure`, `read-only`, `workspace`, `network` or `full` |
/// | `recommended_threshold` | `recommended_threshold = 95`, up to 100 |
/// | `model_preference` | `model_preference(preferred_model = "openai/gpt-5", fallback_models = [], max_tokens = 500, temperature = 0.2)` |
/// | `capabilities`, `meta`, `provider_schema`, `output_schema` | `meta = {"owner": "core"}`: an object, as JSON |
/// | `cost_hint` | `cost_hint = "two cents"`, or any JSON |
///
/// And for the code itself: `type_name = AddTool` names the struct, `scope = function` gives `Tool::scope` (a
/// `fn(&Value, &Session) -> CallScope`), `crate = path` says where `toolwright` (or `toolwright_core`) is.
#[proc_macro_attribute]
pub fn tool(attribute: proc_macro::TokenStream, item: proc_macro::TokenStream) -> proc_macro::TokenStream {
    expand::tool(attribute.into(), item.into()).into()
}
