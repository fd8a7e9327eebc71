import { ArrowDown } from "lucide-react";
import { useCallback, useEffect, useLayoutEffect, useRef, useState, type ReactNode } from "react";
import { t } from "../strings";

/** Scrolls with what comes as long as the person is at the end, and stays put otherwise. */
export function Timeline({ children, footer }: { children: ReactNode; footer?: ReactNode }) {
  const box = useRef<HTMLDivElement>(null);
  const content = useRef<HTMLDivElement>(null);
  const stick = useRef(true);
  const [away, setAway] = useState(false);

  const toEnd = useCallback(() => {
    if (box.current) box.current.scrollTop = box.current.scrollHeight;
  }, []);

  useLayoutEffect(() => {
    if (stick.current) toEnd();
  });
  useEffect(() => {
    // Lines that wrap anew, cards that open, lazily laid out entries.
    const o = new ResizeObserver(() => stick.current && toEnd());
    if (content.current) o.observe(content.current);
    if (box.current) o.observe(box.current);
    return () => o.disconnect();
  }, [toEnd]);

  return (
    <div className="relative min-h-0 flex-1">
      <div
        ref={box}
        role="log"
        aria-live="off"
        aria-label={t.conversation.timeline}
        // oxlint-disable-next-line jsx-a11y/no-noninteractive-tabindex -- scrolls by keyboard
        tabIndex={0}
        className="h-full overflow-y-auto overscroll-contain focus-visible:-outline-offset-2"
        onScroll={(e) => {
          const b = e.currentTarget;
          const end = b.scrollHeight - b.scrollTop - b.clientHeight < 48;
          stick.current = end;
          setAway(!end);
        }}
      >
        <div ref={content} className="mx-auto flex max-w-3xl flex-col gap-5 px-4 pt-2 pb-6 [&>*:first-child>*:first-child]:border-t-0">{children}</div>
      </div>
      {away && (
        <button
          type="button"
          className="absolute bottom-3 left-1/2 flex h-8 -translate-x-1/2 items-center gap-1.5 rounded-full border bg-raised px-3 text-xs font-medium shadow-float hover:bg-hover"
          onClick={() => {
            stick.current = true;
            toEnd();
          }}
        >
          <ArrowDown aria-hidden className="size-3.5" />
          {t.conversation.jump}
        </button>
      )}
      {footer}
    </div>
  );
}
