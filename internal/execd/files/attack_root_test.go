package files_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/astrabox/astrabox/internal/execd/account"
	"github.com/astrabox/astrabox/internal/execd/files"
)

// Every call of the older interface where that has a root, as the files of an
// isolated session do, on paths that are swapped under it.
func TestAttackRacesOfAnOlderRoot(t *testing.T) {
	for name, call := range map[string]func(o *old, n int) (int, string){
		"info": func(o *old, _ int) (int, string) { return o.get("/files/info?path={flip/secret}&path={flat}") },
		"download": func(o *old, n int) (int, string) {
			return o.get("/files/download?path={" + []string{"flip/secret", "flat", "a/b/../secret"}[n%3] + "}")
		},
		"lines": func(o *old, _ int) (int, string) { return o.get("/files/download?limit=1&path={flip/secret}") },
		"list": func(o *old, n int) (int, string) {
			return o.get("/directories/list?depth=3&path={" + []string{"flip", "a/b/..", ""}[n%3] + "}")
		},
		"search": func(o *old, _ int) (int, string) { return o.get("/files/search?pattern=*&path={flip}") },
		"upload": func(o *old, n int) (int, string) {
			path := []string{"flip/secret", "flat", "flip/new/dir/f", "a/b/../new"}[n%4]
			return o.upload(`metadata={"path":"$D/`+path+`","mode":666,"owner":"alice"}`, "file=inside")
		},
		"mv": func(o *old, n int) (int, string) {
			_ = os.WriteFile(o.dir+"/mine", []byte("inside"), 0o644)
			return o.json("POST", "/files/mv", fmt.Sprintf(`[{"src":"$D/mine","dest":"$D/flip/moved%d"}]`, n))
		},
		"mv from": func(o *old, n int) (int, string) {
			_ = os.Remove(o.dir + "/stolen")
			defer o.upload(`metadata={"path":"$D/flip/secret"}`, "file=inside")
			return o.json("POST", "/files/mv", `[{"src":"$D/flip/secret","dest":"$D/stolen"}]`)
		},
		"permissions": func(o *old, _ int) (int, string) {
			return o.json("POST", "/files/permissions", `{"$D/flip/secret":{"mode":666,"owner":"alice"},"$D/flat":{"mode":666,"owner":"alice"}}`)
		},
		"replace": func(o *old, _ int) (int, string) {
			return o.json("POST", "/files/replace", `{"$D/flip/secret":{"old":"s","new":"s"},"$D/flat":{"old":"s","new":"s"}}`)
		},
		"directories": func(o *old, n int) (int, string) {
			return o.json("POST", "/directories", fmt.Sprintf(`{"$D/flip/m%d/n":{"mode":777,"owner":"alice"}}`, n%50))
		},
		"delete": func(o *old, _ int) (int, string) {
			defer o.upload(`metadata={"path":"$D/flip/secret"}`, "file=inside")
			return o.do("DELETE", "/files?path={flip/secret}&path={flip/only-outside}", "", nil)
		},
		"delete directories": func(o *old, _ int) (int, string) {
			o.json("POST", "/directories", `{"$D/flip/d/kept":null}`)
			return o.do("DELETE", "/directories?path={flip/d}", "", nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			a := newArena(t)
			etc := t.TempDir()
			put(t, etc+"/passwd", passwd)
			put(t, etc+"/group", group)
			root, err := os.Open(a.root)
			must(t, err)
			t.Cleanup(func() { root.Close() })
			o := &old{t, daemon(t, files.Config{Accounts: account.New(etc+"/passwd", etc+"/group"), Root: root}), a.root}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var attackers sync.WaitGroup
			a.swap(ctx, &attackers)
			done := 0
			for n, goOn := 0, attacking(); goOn(done > 0 && a.swaps.Load() > 0); n++ {
				status, body := call(o, n)
				if status == 200 {
					done++
				}
				if strings.Contains(body, secret) || status == 200 && strings.Contains(body, "only-outside") || strings.Contains(body, fmt.Sprintf(`"size":%d,`, len(secret))) {
					t.Fatalf("it showed the outside: %s", body)
				}
			}
			cancel()
			attackers.Wait()
			_ = os.Rename(a.outside+"/b", a.root+"/a/b")
			if after := a.state(); !slices.Equal(a.before, after) {
				t.Errorf("the outside was\n%s\nand is\n%s", strings.Join(a.before, "\n"), strings.Join(after, "\n"))
			}
			if b, err := os.ReadFile(a.root + "/stolen"); err == nil && strings.Contains(string(b), secret) && a.link("/stolen") == "" {
				t.Error("the outside's file was taken")
			}
			if done == 0 {
				t.Error("no call succeeded: nothing was tried")
			}
			if got := left(t, a.root); len(got) > 0 {
				t.Errorf("left behind: %v", got)
			}
			t.Logf("%d calls succeeded, %d swaps", done, a.swaps.Load())
		})
	}
}
