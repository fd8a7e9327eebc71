import { t } from "../strings";
import { load, save } from "../ui/storage";

const least = 340;
const most = 1400;

/** The line between conversation and panel: dragged, or moved with the arrow keys. */
export function Splitter({ width, onWidth }: { width: number; onWidth: (w: number) => void }) {
  const set = (w: number) => {
    const v = Math.round(Math.max(least, Math.min(most, w)));
    onWidth(v);
    save("panel", v);
  };
  return (
    <div
      role="separator"
      aria-orientation="vertical"
      aria-label={t.conversation.resize}
      aria-valuenow={width}
      aria-valuemin={least}
      aria-valuemax={most}
      // oxlint-disable-next-line jsx-a11y/no-noninteractive-tabindex -- a separator that moves takes the focus
      tabIndex={0}
      className="group relative z-10 w-px shrink-0 cursor-col-resize bg-line after:absolute after:inset-y-0 after:-left-1 after:w-2 hover:bg-focus focus-visible:bg-focus"
      onPointerDown={(e) => {
        e.preventDefault();
        e.currentTarget.setPointerCapture(e.pointerId);
      }}
      onPointerMove={(e) => {
        if (!e.currentTarget.hasPointerCapture(e.pointerId)) return;
        const box = e.currentTarget.parentElement!.getBoundingClientRect();
        set(Math.min(box.right - e.clientX, box.width * 0.62));
      }}
      onKeyDown={(e) => {
        if (e.key === "ArrowLeft") set(width + 24);
        if (e.key === "ArrowRight") set(width - 24);
      }}
    />
  );
}

Splitter.load = () => load("panel", 520);
