// Settings of a job as the specification describes them, flat: `distinct_split.enabled`.

/** `{"join.skew": "AUTO"}` of `{join: {skew: "AUTO"}}`. */
export function flat(settings, prefix = "") {
  const found = {};
  for (const [name, value] of Object.entries(settings ?? {})) {
    if (value !== null && typeof value === "object") Object.assign(found, flat(value, `${prefix}${name}.`));
    else found[prefix + name] = value;
  }
  return found;
}

/** The settings with one of them, named with its dots, at another value. An undefined value takes it out. */
export function withSetting(settings, name, value) {
  const [first, ...rest] = name.split(".");
  const copy = { ...settings };
  // It may have been given under its whole name.
  delete copy[name];
  if (rest.length) copy[first] = withSetting(copy[first] ?? {}, rest.join("."), value);
  else if (value === undefined) delete copy[first];
  else copy[first] = value;
  if (rest.length && Object.keys(copy[first]).length === 0) delete copy[first];
  return copy;
}

/** Every setting that there is: `{name, description, default, choices, type}`. */
export function declared(schemas) {
  return schemas ? described(schemas, schemas.JobSettings, "") : [];
}

/** Default values by name. */
export function defaultsOf(schemas) {
  return Object.fromEntries(declared(schemas).map((one) => [one.name, one.default]));
}

function described(schemas, schema, prefix) {
  return Object.entries(schema.properties).flatMap(([name, property]) => {
    const inner = resolved(schemas, property);
    if (inner.properties) return described(schemas, inner, `${prefix}${name}.`);
    return [
      {
        name: prefix + name,
        description: property.description ?? inner.description ?? "",
        default: property.default ?? null,
        choices: choices(schemas, property),
        type: inner.type,
      },
    ];
  });
}

/** The schema behind a reference, and the first of several that is not null. */
function resolved(schemas, property) {
  const first = property.anyOf?.find((one) => one.type !== "null") ?? property;
  const target = first.$ref ? schemas[first.$ref.split("/").at(-1)] : first;
  return target;
}

function choices(schemas, property) {
  const target = resolved(schemas, property);
  if (target.enum) return target.enum;
  return target.type === "boolean" ? ["true", "false"] : null;
}
