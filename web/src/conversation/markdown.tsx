// What an agent writes. Markdown, never HTML: react-markdown drops raw tags, and links can't reach this page.

import Markdown from "react-markdown";
import remarkGfm from "remark-gfm";
import { t } from "../strings";
import { CopyButton } from "../ui/parts";

interface Node { type: string; value?: string; children?: Node[] }
const textOf = (n: Node | undefined): string => n?.value ?? n?.children?.map(textOf).join("") ?? "";

export default function AgentText({ text }: { text: string }) {
  return (
    <div className="prose-agent">
      <Markdown
        remarkPlugins={[remarkGfm]}
        components={{
          a: ({ href, children }) => <a href={href} target="_blank" rel="noopener noreferrer nofollow">{children}</a>,
          // Pictures from elsewhere would tell their host that this was read.
          img: ({ src, alt }) => <a href={typeof src === "string" ? src : undefined} target="_blank" rel="noopener noreferrer nofollow">{alt || String(src)}</a>,
          pre: ({ node, children }) => (
            <div className="group relative">
              <pre className="overflow-x-auto rounded-lg border bg-sunken p-3 text-[0.8125rem] leading-5">{children}</pre>
              <CopyButton label={t.copy} text={() => textOf(node as Node | undefined)} className="absolute! top-1 right-1 opacity-0 group-focus-within:opacity-100 group-hover:opacity-100" />
            </div>
          ),
        }}
      >
        {text}
      </Markdown>
    </div>
  );
}
