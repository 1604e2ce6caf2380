// The settings of a job: their declarations in the OpenAPI schema, and values by dotted name such as `distinct_split.enabled`.
import { get } from "./api.js";
import { usePolled } from "./polling.js";

let loadedSchemas = null;

/** Returns `components.schemas` of /openapi.json, which is requested once; null until it is loaded. */
export function useSchema() {
  const { value } = usePolled(async (_, signal) => (loadedSchemas ??= (await get("openapi.json", { signal, cache: "default" })).components.schemas), 0, "schema");
  return value ?? loadedSchemas;
}

/** Returns `{"join.skew": "AUTO"}` for `{join: {skew: "AUTO"}}`. */
export function flatten(settings, prefix = "") {
  const found = {};
  for (const [name, value] of Object.entries(settings ?? {})) {
    if (value !== null && typeof value === "object") Object.assign(found, flatten(value, `${prefix}${name}.`));
    else found[prefix + name] = value;
  }
  return found;
}

/** Returns the settings with another value for one dotted name. An undefined value removes the setting. */
export function withSetting(settings, name, value) {
  const [first, ...rest] = name.split(".");
  const copy = { ...settings };
  // The setting may have been given with its dotted name.
  delete copy[name];
  if (rest.length) copy[first] = withSetting(copy[first] ?? {}, rest.join("."), value);
  else if (value === undefined) delete copy[first];
  else copy[first] = value;
  if (rest.length && Object.keys(copy[first]).length === 0) delete copy[first];
  return copy;
}

/** Returns all settings: `{name, description, default, choices, type}`. */
export function declaredSettings(schemas) {
  return schemas ? describe(schemas, schemas.JobSettings, "") : [];
}

/** Returns the default values by name. */
export function defaultsOf(schemas) {
  return Object.fromEntries(declaredSettings(schemas).map((setting) => [setting.name, setting.default]));
}

function describe(schemas, schema, prefix) {
  return Object.entries(schema.properties).flatMap(([name, property]) => {
    const inner = resolve(schemas, property);
    if (inner.properties) return describe(schemas, inner, `${prefix}${name}.`);
    return [
      {
        name: prefix + name,
        description: property.description ?? inner.description ?? "",
        default: property.default ?? null,
        choices: choices(schemas, property),
        type: [inner.type].flat().find((type) => type !== "null"),
      },
    ];
  });
}

/** Resolves a reference; of several schemas, the first that is not null. */
function resolve(schemas, property) {
  const first = property.anyOf?.find((setting) => setting.type !== "null") ?? property;
  const target = first.$ref ? schemas[first.$ref.split("/").at(-1)] : first;
  return target;
}

function choices(schemas, property) {
  const target = resolve(schemas, property);
  if (target.enum) return target.enum;
  return target.type === "boolean" ? ["true", "false"] : null;
}
