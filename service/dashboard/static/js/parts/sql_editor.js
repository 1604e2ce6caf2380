// The SQL editor: CodeMirror, with the service's errors at their line and column.
import { html, useEffect, useRef } from "../../vendor/preact.js";
import {
  autocompletion,
  bracketMatching,
  closeBrackets,
  Compartment,
  completionKeymap,
  defaultKeymap,
  drawSelection,
  EditorState,
  EditorView,
  HighlightStyle,
  history,
  historyKeymap,
  keymap,
  lineNumbers,
  lintGutter,
  lintKeymap,
  placeholder,
  setDiagnostics,
  sql,
  StandardSQL,
  syntaxHighlighting,
  tags,
} from "../../vendor/codemirror.js";

const MONOSPACE = 'ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace';
const LOOK = EditorView.theme({
  "&": { minHeight: "12rem", maxHeight: "40rem", fontSize: "0.9rem", color: "var(--text)", backgroundColor: "var(--surface)" },
  "&.cm-focused": { outline: "2px solid var(--accent)", outlineOffset: "-1px" },
  ".cm-scroller": { overflow: "auto", fontFamily: MONOSPACE },
  ".cm-content": { caretColor: "var(--text)", minHeight: "12rem" },
  ".cm-cursor": { borderLeftColor: "var(--text)" },
  "&.cm-focused .cm-selectionBackground, .cm-selectionBackground": { backgroundColor: "var(--selection) !important" },
  ".cm-gutters": { backgroundColor: "var(--raised)", color: "var(--quiet)", borderRight: "1px solid var(--line)" },
  ".cm-placeholder": { color: "var(--quiet)" },
  ".cm-tooltip": { backgroundColor: "var(--surface)", color: "var(--text)", border: "1px solid var(--line)", fontSize: "0.85rem" },
});
const COLOURS = syntaxHighlighting(
  HighlightStyle.define([
    { tag: tags.keyword, color: "var(--accent)", fontWeight: "600" },
    { tag: [tags.string, tags.special(tags.string)], color: "var(--good)" },
    { tag: [tags.number, tags.bool, tags.null], color: "var(--hot)" },
    { tag: tags.typeName, color: "var(--active)" },
    { tag: tags.comment, color: "var(--quiet)", fontStyle: "italic" },
  ]),
);

/**
 * `text` is the initial text only, because a later value could undo the user's typing; give the editor another key to
 * replace its text. `onChange(text)` gets every change. `issues` are the service's errors with line and column, shown if
 * `areCurrent`. `tables` maps tables to their columns, for completion. Ctrl+Enter calls `onRun`.
 */
export function SqlEditor({ text, onChange, issues, areCurrent, tables, onRun, label }) {
  const place = useRef(null);
  const view = useRef(null);
  const language = useRef(null);
  const handlers = useRef({});
  handlers.current = { onChange, onRun };

  useEffect(() => {
    language.current = new Compartment();
    const run = { key: "Mod-Enter", run: () => (handlers.current.onRun(), true), preventDefault: true };
    // In a shadow root, CodeMirror adds its styles as style sheets, which the content security policy allows.
    const root = place.current.attachShadow({ mode: "open" });
    view.current = new EditorView({
      root,
      parent: root,
      state: EditorState.create({
        doc: text,
        extensions: [
          lineNumbers(),
          history(),
          drawSelection(),
          bracketMatching(),
          closeBrackets(),
          autocompletion(),
          lintGutter(),
          EditorView.lineWrapping,
          COLOURS,
          LOOK,
          language.current.of(dialect(tables)),
          placeholder("SELECT …"),
          keymap.of([run, ...defaultKeymap, ...historyKeymap, ...completionKeymap, ...lintKeymap]),
          EditorView.contentAttributes.of({ "aria-label": label }),
          EditorView.updateListener.of((update) => {
            if (update.docChanged) handlers.current.onChange(update.state.doc.toString());
          }),
        ],
      }),
    });
    return () => view.current.destroy();
  }, []);

  useEffect(() => {
    view.current.dispatch({ effects: language.current.reconfigure(dialect(tables)) });
  }, [JSON.stringify(tables)]);

  useEffect(() => {
    const document = view.current.state.doc;
    const marks = (areCurrent ? issues : []).filter((one) => one.line && one.line <= document.lines).map((one) => mark(document, one));
    view.current.dispatch(setDiagnostics(view.current.state, marks));
    if (marks.length) view.current.dispatch({ selection: { anchor: marks[0].from }, scrollIntoView: true });
  }, [issues, areCurrent]);

  return html`<div class="sql-editor" ref=${place}></div>`;
}

const dialect = (tables) => sql({ dialect: StandardSQL, schema: tables, upperCaseKeywords: true });

/** Returns the mark of an error: from its position to the end of the word there. */
function mark(document, issue) {
  const line = document.line(issue.line);
  const from = Math.min(line.from + Math.max((issue.column ?? 1) - 1, 0), line.to);
  const word = /^[\w.`]+|^./.exec(document.sliceString(from, line.to));
  return { from, to: Math.min(from + (word?.[0].length ?? 0), line.to), severity: "error", message: issue.detail };
}
