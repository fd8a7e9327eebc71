// CodeMirror in the console's colours.

import { indentWithTab } from "@codemirror/commands";
import { HighlightStyle, syntaxHighlighting } from "@codemirror/language";
import { Compartment, EditorState } from "@codemirror/state";
import { EditorView, keymap } from "@codemirror/view";
import { tags } from "@lezer/highlight";
import { basicSetup } from "codemirror";
import { useEffect, useImperativeHandle, useRef, type Ref } from "react";
import { language } from "./languages";

const look = EditorView.theme({
  "&": { height: "100%", color: "var(--ink)", backgroundColor: "var(--canvas)", fontSize: "0.8125rem" },
  "&.cm-focused": { outline: "none" },
  ".cm-scroller": { fontFamily: "var(--font-mono)", lineHeight: "1.55" },
  ".cm-content": { caretColor: "var(--ink)", padding: "8px 0" },
  ".cm-cursor, .cm-dropCursor": { borderLeftColor: "var(--ink)" },
  ".cm-gutters": { backgroundColor: "var(--canvas)", color: "var(--faint)", borderRight: "1px solid var(--line)" },
  ".cm-activeLine, .cm-activeLineGutter": { backgroundColor: "color-mix(in srgb, var(--hover) 55%, transparent)" },
  "&.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground, .cm-selectionBackground": { backgroundColor: "color-mix(in srgb, var(--work) 24%, transparent) !important" },
  ".cm-panels": { backgroundColor: "var(--side)", color: "var(--ink)" },
  ".cm-panels.cm-panels-bottom": { borderTop: "1px solid var(--line)" },
  ".cm-textfield, .cm-button": { backgroundColor: "var(--raised)", backgroundImage: "none", border: "1px solid var(--line-strong)", borderRadius: "5px", color: "var(--ink)" },
  ".cm-searchMatch": { backgroundColor: "color-mix(in srgb, var(--wait) 35%, transparent)" },
  ".cm-searchMatch-selected": { backgroundColor: "color-mix(in srgb, var(--wait) 60%, transparent)" },
  ".cm-matchingBracket": { backgroundColor: "var(--hover) !important", outline: "1px solid var(--line-strong)" },
  ".cm-foldPlaceholder": { backgroundColor: "var(--hover)", border: "none", color: "var(--soft)" },
  ".cm-tooltip": { backgroundColor: "var(--raised)", border: "1px solid var(--line)", borderRadius: "6px" },
  ".cm-tooltip-autocomplete ul li[aria-selected]": { backgroundColor: "var(--hover)", color: "var(--ink)" },
});

const colours = HighlightStyle.define([
  { tag: [tags.keyword, tags.modifier, tags.operatorKeyword], color: "var(--ansi-5)" },
  { tag: [tags.string, tags.special(tags.string), tags.regexp], color: "var(--ansi-2)" },
  { tag: [tags.number, tags.bool, tags.null, tags.atom], color: "var(--ansi-3)" },
  { tag: [tags.comment, tags.meta], color: "var(--faint)", fontStyle: "italic" },
  { tag: [tags.function(tags.variableName), tags.function(tags.propertyName)], color: "var(--ansi-4)" },
  { tag: [tags.typeName, tags.className, tags.tagName, tags.namespace], color: "var(--ansi-6)" },
  { tag: [tags.propertyName, tags.attributeName], color: "var(--ansi-4)" },
  { tag: tags.heading, fontWeight: "650" },
  { tag: tags.strong, fontWeight: "650" },
  { tag: tags.emphasis, fontStyle: "italic" },
  { tag: tags.link, textDecoration: "underline" },
  { tag: tags.invalid, color: "var(--bad)" },
]);

export interface EditorHandle {
  text: () => string;
}

/** Shows `text`; a new `epoch` puts `text` in place of what is there. `onChange` comes on every change that a person makes. */
export default function Editor({ path, text, epoch, crlf, label, onChange, onSave, ref }:
  { path: string; text: string; epoch: number; crlf: boolean; label: string; onChange: (text: () => string) => void; onSave: () => void; ref?: Ref<EditorHandle> }) {
  const host = useRef<HTMLDivElement>(null);
  const view = useRef<EditorView>(undefined);
  const calls = useRef({ onChange, onSave });
  calls.current = { onChange, onSave };
  const replacing = useRef(false);
  const first = useRef(text);

  useImperativeHandle(ref, () => ({ text: () => view.current?.state.sliceDoc() ?? "" }));

  useEffect(() => {
    const lang = new Compartment();
    const v = new EditorView({
      parent: host.current!,
      state: EditorState.create({
        doc: first.current,
        extensions: [
          keymap.of([{ key: "Mod-s", preventDefault: true, run: () => (calls.current.onSave(), true) }]),
          basicSetup,
          // Tab indents; Escape, then Tab, leaves the editor.
          keymap.of([indentWithTab]),
          EditorState.lineSeparator.of(crlf ? "\r\n" : "\n"),
          EditorView.contentAttributes.of({ "aria-label": label }),
          EditorView.updateListener.of((u) => {
            if (u.docChanged && !replacing.current) calls.current.onChange(() => u.state.sliceDoc());
          }),
          look,
          syntaxHighlighting(colours),
          lang.of([]),
        ],
      }),
    });
    view.current = v;
    let over = false;
    language(path).then((l) => over || v.dispatch({ effects: lang.reconfigure(l) }), () => {});
    return () => {
      over = true;
      v.destroy();
    };
  }, [path, crlf, label]);

  useEffect(() => {
    const v = view.current;
    if (!v || v.state.sliceDoc() === text) return;
    replacing.current = true;
    const head = Math.min(v.state.selection.main.head, text.length);
    v.dispatch({ changes: { from: 0, to: v.state.doc.length, insert: v.state.toText(text) } });
    v.dispatch({ selection: { anchor: Math.min(head, v.state.doc.length) } });
    replacing.current = false;
    // The text of an epoch doesn't change.
    // oxlint-disable-next-line react-hooks/exhaustive-deps
  }, [epoch]);

  return <div ref={host} className="h-full overflow-hidden" />;
}
