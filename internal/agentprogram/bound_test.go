package agentprogram

import (
	"runtime"
	"strings"
	"testing"
)

// A hostile program writes lists whose entries take three bytes on the line and
// many times that in memory: one line must not cost the platform gigabytes.
func TestLongListsAreCut(t *testing.T) {
	items := strings.Repeat("{},", 8<<20/3) + "{}"
	for name, l := range map[string]string{
		"content": `{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate":"tool_call","toolCallId":"c","content":[` + items + `]}}}`,
		"options": `{"jsonrpc":"2.0","id":7,"method":"session/request_permission","params":{"sessionId":"s","toolCall":{"toolCallId":"c"},"options":[` + items + `]}}`,
	} {
		m := &acp{acpState{V: 1, Phase: phaseTurn, Session: "s", Turn: "t"}}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if r, err := m.Feed([]byte(l)); err != nil || r.Skipped {
			t.Fatalf("%s: %+v, %v", name, r, err)
		}
		runtime.ReadMemStats(&after)
		if used := after.TotalAlloc - before.TotalAlloc; used > 10*uint64(len(l)) {
			t.Errorf("%s: a line of %d MiB took %d MiB", name, len(l)>>20, used>>20)
		}
	}
}
