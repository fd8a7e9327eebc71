import { ArrowDown } from "lucide-react";
import { useCallback, useEffect, useLayoutEffect, useRef, useState, type ReactNode } from "react";
import { t } from "../strings";
import { Button } from "../ui/button";

/**
 * Scrolls with what comes as long as the person is at the end, and stays put otherwise. `onEarlier` is called when the person
 * comes near the beginning of what is shown, while there is more before it.
 */
export function Timeline({ children, onEarlier }: { children: ReactNode; onEarlier?: () => void }) {
  const box = useRef<HTMLDivElement>(null);
  const content = useRef<HTMLDivElement>(null);
  const stick = useRef(true);
  const [away, setAway] = useState(false);
  const top = useRef<HTMLDivElement>(null);
  /** Distance from the end when earlier entries were asked for: they come in above, and nothing must move. */
  const held = useRef<number>(undefined);

  const toEnd = useCallback(() => {
    if (box.current) box.current.scrollTop = box.current.scrollHeight;
  }, []);

  useLayoutEffect(() => {
    if (held.current !== undefined && box.current) {
      box.current.scrollTop = box.current.scrollHeight - held.current;
      held.current = undefined;
    } else if (stick.current) toEnd();
  });
  const earlier = useCallback(() => {
    if (box.current) held.current = box.current.scrollHeight - box.current.scrollTop;
    onEarlier?.();
  }, [onEarlier]);
  useEffect(() => {
    if (!onEarlier || !top.current) return;
    const o = new IntersectionObserver((seen) => seen.some((x) => x.isIntersecting) && !stick.current && earlier(), { root: box.current, rootMargin: "600px 0px 0px 0px" });
    o.observe(top.current);
    return () => o.disconnect();
  }, [onEarlier, earlier]);
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
        <div ref={content} className="mx-auto flex max-w-3xl flex-col gap-5 px-4 pt-2 pb-6 [&>*:first-child>*:first-child]:border-t-0">
          {onEarlier && <div ref={top} className="py-2 text-center"><Button small look="quiet" onClick={earlier}>{t.conversation.earlier}</Button></div>}
          {children}
        </div>
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
    </div>
  );
}
