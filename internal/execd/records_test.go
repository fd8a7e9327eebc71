package execd

import (
	"bytes"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/astrabox/astrabox/internal/execd/command"
)

// What is remembered of commands is bounded, however long their lines are.
func TestLongLinesAreShortened(t *testing.T) {
	var rs records
	defer rs.close()
	for range 3 * maxRecords {
		rs.add(strings.Repeat("ü", maxContent), nil, nil).end(command.Result{}, "")
	}
	total := 0
	for _, r := range rs.order {
		total += len(r.content)
	}
	if most := maxRecords * (maxContent + 3); len(rs.order) != maxRecords || total > most {
		t.Errorf("%d records with %d bytes, want %d with at most %d", len(rs.order), total, maxRecords, most)
	}
	if c := rs.order[0].content; !strings.HasPrefix(c, "üü") || !strings.HasSuffix(c, "ü…") {
		t.Errorf("a line becomes %.10q…%q", c, c[len(c)-10:])
	}
}

// What ended a day ago is forgotten, what runs that long isn't.
func TestOldRecordsGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var rs records
		running, ended := rs.add("running", nil, nil), rs.add("ended", nil, nil)
		ended.end(command.Result{}, "")
		time.Sleep(recordTime)
		if rs.add("later", nil, nil); rs.get(ended.id) == nil {
			t.Error("forgotten too early")
		}
		time.Sleep(time.Second)
		rs.add("later still", nil, nil)
		if rs.get(ended.id) != nil || rs.get(running.id) == nil {
			t.Errorf("after a day: ended %v, running %v", rs.get(ended.id) != nil, rs.get(running.id) != nil)
		}
		running.end(command.Result{}, "")
		rs.add("another", nil, nil)
		if rs.get(running.id) == nil {
			t.Error("a long command is forgotten as it ends")
		}
	})
}

// A log that has lost something holds nothing that came after it: it is the
// beginning of the output, without holes.
func TestLogIsABeginning(t *testing.T) {
	var logs budget
	logs.used.Store(maxLogs - 5)
	s, err := newSpool(&logs)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	s.write([]byte("012"))
	s.write([]byte("345"))
	logs.used.Store(0) // there is room again
	s.write([]byte("678"))
	var got bytes.Buffer
	if !s.page(&got, 0, func(int64, int64) {}) || got.String() != "01234" {
		t.Errorf("the log is %q", got.String())
	}
}

// When logs take much room, the oldest that have ended go, and no others.
func TestOldLogsMakeRoom(t *testing.T) {
	var rs records
	defer rs.close()
	piece := make([]byte, 1<<20)
	made := func(line string, mebibytes int64) *record {
		log, err := newSpool(&rs.logs)
		if err != nil {
			t.Fatal(err)
		}
		log.write(piece)
		log.size += (mebibytes - 1) << 20 // as if it held more
		rs.logs.take((mebibytes - 1) << 20)
		return rs.add(line, nil, log)
	}
	running := made("running", 100)
	silent := rs.add("without a log", nil, nil)
	silent.end(command.Result{}, "")
	oldest, newer := made("oldest", 300), made("newer", 300)
	oldest.end(command.Result{}, "")
	newer.end(command.Result{}, "")
	newest := made("newest", 100)
	for r, want := range map[*record]bool{running: true, silent: true, oldest: false, newer: true, newest: true} {
		if rs.get(r.id) == nil == want {
			t.Errorf("%s: kept %v, want %v", r.content, !want, want)
		}
	}
	if used := rs.logs.used.Load(); used != 500<<20 {
		t.Errorf("%d MiB are counted, want 500", used>>20)
	}
	if oldest.log.page(nil, 0, nil) {
		t.Error("the log of what was forgotten is still there")
	}
}

// A log needs no directory for temporary files.
func TestLogWithoutTemporaryDirectory(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir()+"/deleted")
	var logs budget
	s, err := newSpool(&logs)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	s.write([]byte("kept"))
	var got bytes.Buffer
	if !s.page(&got, 0, func(int64, int64) {}) || got.String() != "kept" {
		t.Errorf("the log is %q", got.String())
	}
}
