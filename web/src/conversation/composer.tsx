import { clsx } from "clsx";
import { ArrowUp, ListPlus, Square } from "lucide-react";
import { useImperativeHandle, useLayoutEffect, useRef, useState, type Ref } from "react";
import { t } from "../strings";
import { Button, IconButton } from "../ui/button";
import { Spinner } from "../ui/parts";
import { load, save } from "../ui/storage";

export interface ComposerHandle {
  /** Puts text in front of what is there, and the cursor behind it. */
  insert: (text: string) => void;
}

export function Composer({ draftKey, shell, running, stopping, busy, history, onSend, onStop, ref, autoFocus }: {
  /** Under which name what is being written is kept. */
  draftKey: string;
  shell: boolean;
  running?: boolean;
  stopping?: boolean;
  busy?: boolean;
  /** What was sent before, oldest first: the up arrow brings it back. */
  history: readonly string[];
  /** Resolves to false when the text must stay. */
  onSend: (text: string) => void | boolean | Promise<boolean>;
  onStop?: () => void;
  ref?: Ref<ComposerHandle>;
  autoFocus?: boolean;
}) {
  const [text, setText] = useState(() => load(`draft.${draftKey}`, ""));
  const area = useRef<HTMLTextAreaElement>(null);
  /** Place in the history, counted from its end; 0 is what is being written. */
  const [recall, setRecall] = useState(0);
  const written = useRef("");

  const change = (s: string) => {
    setText(s);
    save(`draft.${draftKey}`, s);
  };
  const cursorToEnd = () => requestAnimationFrame(() => area.current?.setSelectionRange(area.current.value.length, area.current.value.length));

  useImperativeHandle(ref, () => ({
    insert: (s) => {
      change(text.trim() === "" ? s : `${s}\n${text}`);
      area.current?.focus();
      cursorToEnd();
    },
  }));
  useLayoutEffect(() => {
    const a = area.current;
    if (!a) return;
    a.style.height = "auto";
    a.style.height = `${Math.min(a.scrollHeight, 240)}px`;
  }, [text]);

  const send = async () => {
    if (text.trim() === "" || busy) return;
    const sent = text;
    setRecall(0);
    change("");
    if ((await onSend(sent.replace(/\s+$/, ""))) === false) change(sent);
    area.current?.focus();
  };

  const older = (step: number): boolean => {
    const to = recall + step;
    if (to < 0 || to > history.length) return false;
    if (recall === 0) written.current = text;
    setRecall(to);
    change(to === 0 ? written.current : history[history.length - to]!);
    cursorToEnd();
    return true;
  };

  const onKeyDown = (e: React.KeyboardEvent<HTMLTextAreaElement>) => {
    if (e.nativeEvent.isComposing || e.altKey) return;
    const a = e.currentTarget;
    if (e.key === "Enter" && !e.shiftKey) {
      e.preventDefault();
      void send();
    } else if (e.key === "ArrowUp" && !e.shiftKey && (recall > 0 || text === "") && a.selectionStart === a.selectionEnd && !a.value.slice(0, a.selectionStart).includes("\n")) {
      if (older(1)) e.preventDefault();
    } else if (e.key === "ArrowDown" && !e.shiftKey && recall > 0 && !a.value.slice(a.selectionEnd).includes("\n")) {
      if (older(-1)) e.preventDefault();
    } else if (e.key === "Escape") a.blur();
  };

  return (
    <form
      onSubmit={(e) => {
        e.preventDefault();
        void send();
      }}
    >
      <div className="flex items-end gap-2 rounded-xl border border-line-strong bg-raised py-1.5 pr-1.5 pl-3 shadow-xs transition-shadow focus-within:border-focus focus-within:ring-3 focus-within:ring-focus/15">
        {shell && <span aria-hidden className="self-start py-1 font-mono leading-6 text-work select-none coarse:py-2">❯</span>}
        <textarea
          id="composer"
          ref={area}
          // oxlint-disable-next-line jsx-a11y/no-autofocus -- the screen is for writing
          autoFocus={autoFocus}
          rows={1}
          value={text}
          aria-label={t.composer.label}
          aria-describedby="composer-hint"
          placeholder={shell ? t.composer.shell : t.composer.prose}
          spellCheck={!shell}
          autoCapitalize={shell ? "off" : "sentences"}
          autoCorrect={shell ? "off" : "on"}
          onChange={(e) => {
            setRecall(0);
            change(e.target.value);
          }}
          onKeyDown={onKeyDown}
          // 16 px on touch screens: smaller ones make phones zoom in.
          className={clsx("max-h-60 min-w-0 flex-1 resize-none bg-transparent py-1 leading-6 outline-none coarse:py-2 coarse:text-base", shell && "font-mono text-[0.8125rem]")}
        />
        {running && onStop && (
          <Button className="coarse:px-2.5" onClick={onStop} disabled={stopping} title="Ctrl+.">
            {stopping ? <Spinner /> : <Square aria-hidden className="size-3 fill-current" />}
            {stopping ? t.composer.stopping : t.composer.stop}
          </Button>
        )}
        {running
          ? <Button type="submit" look="primary" className="coarse:px-2.5" disabled={text.trim() === ""}><ListPlus aria-hidden className="size-3.5" />{t.composer.queue}</Button>
          : <IconButton type="submit" filled label={t.composer.send} disabled={text.trim() === "" || busy}>{busy ? <Spinner /> : <ArrowUp />}</IconButton>}
      </div>
      <p id="composer-hint" className="truncate px-3 pt-1.5 text-2xs text-faint coarse:sr-only">{running ? t.composer.queueHint : t.composer.hint}</p>
    </form>
  );
}
