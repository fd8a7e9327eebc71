import { clsx } from "clsx";
import { Tooltip } from "radix-ui";
import type { ComponentProps, ReactNode } from "react";

type Look = "primary" | "plain" | "danger" | "quiet";

const looks: Record<Look, string> = {
  primary: "bg-ink text-invert hover:opacity-85",
  plain: "border bg-raised text-ink hover:bg-hover",
  danger: "bg-bad text-invert hover:opacity-85",
  quiet: "text-soft hover:bg-hover hover:text-ink",
};

export function Button({ look = "plain", small, className, ...rest }: ComponentProps<"button"> & { look?: Look; small?: boolean }) {
  return (
    <button
      type="button"
      {...rest}
      className={clsx(
        "inline-flex shrink-0 items-center justify-center gap-1.5 rounded-md font-medium whitespace-nowrap transition-colors select-none disabled:opacity-45",
        small ? "h-7 px-2.5 text-xs coarse:h-9" : "h-8 px-3 text-sm coarse:h-10",
        looks[look],
        className,
      )}
    />
  );
}

const sizes = { small: "size-6 coarse:size-9", medium: "size-7 coarse:size-9", large: "size-8 coarse:size-10" };

/** A button that shows a picture; its label is read out and shown as a tip. */
export function IconButton({ label, tip, children, className, size = "large", filled, ...rest }:
  Omit<ComponentProps<"button">, "aria-label"> & { label: string; tip?: string; children: ReactNode; size?: keyof typeof sizes; filled?: boolean }) {
  return (
    <Tip text={tip ?? label}>
      <button
        type="button"
        aria-label={label}
        {...rest}
        className={clsx(
          "inline-flex shrink-0 items-center justify-center rounded-md transition-colors [&_svg]:size-4",
          sizes[size],
          filled ? "bg-ink text-invert hover:opacity-85 disabled:opacity-25" : "text-soft hover:bg-hover hover:text-ink disabled:opacity-40 aria-pressed:bg-hover aria-pressed:text-ink",
          className,
        )}
      >
        {children}
      </button>
    </Tip>
  );
}

export function Tip({ text, children }: { text: string; children: ReactNode }) {
  return (
    <Tooltip.Root>
      <Tooltip.Trigger asChild>{children}</Tooltip.Trigger>
      <Tooltip.Portal>
        <Tooltip.Content
          sideOffset={6}
          collisionPadding={8}
          // A finger doesn't hover; it would see tips of what just got the focus.
          className="pointer-events-none z-50 max-w-64 coarse:hidden rounded-md bg-ink px-2 py-1 text-xs text-invert"
        >
          {text}
        </Tooltip.Content>
      </Tooltip.Portal>
    </Tooltip.Root>
  );
}
