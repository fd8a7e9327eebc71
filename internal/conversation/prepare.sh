# Makes the account ACCOUNT with its home and the directory WORKSPACE, for
# images that lack them, and prints the mark of the Agent program's binary.
# POSIX sh and mkdir, chown, chmod, cat, wc only: an image may have no useradd.
set -eu
umask 022

uids=" " gids=" " home= gid= group=
n= u= g= h= whole=
while IFS=: read -r n x u g gecos h s; do
  uids="$uids$u "
  if [ "$n" = "$ACCOUNT" ]; then home=$h gid=$g; fi
done </etc/passwd
whole=$n # what a last line without its end left behind
n=
while IFS=: read -r n x g members; do
  gids="$gids$g "
  if [ "$n" = "$ACCOUNT" ]; then group=$g; fi
done </etc/group
if [ -n "$whole" ]; then echo >>/etc/passwd; fi
if [ -n "$n" ]; then echo >>/etc/group; fi

if [ -z "$gid" ]; then
  id=1000
  while :; do
    case "$uids$gids" in *" $id "*) id=$((id + 1)) ;; *) break ;; esac
  done
  shell=/bin/sh
  if [ -x /bin/bash ]; then shell=/bin/bash; fi
  if [ -z "$group" ]; then
    echo "$ACCOUNT:x:$id:" >>/etc/group
    group=$id
  fi
  gid=$group home=/home/$ACCOUNT
  echo "$ACCOUNT:x:$id:$gid:$ACCOUNT:$home:$shell" >>/etc/passwd
fi
if [ ! -d "$home" ]; then
  mkdir -p "$home"
  chown "$ACCOUNT:$gid" "$home"
  chmod 0750 "$home"
fi
if [ -n "${FRESH:-}" ] || [ ! -d "$WORKSPACE" ]; then
  mkdir -p "$WORKSPACE"
  chown "$ACCOUNT:$gid" "$WORKSPACE"
  chmod 0750 "$WORKSPACE"
fi
if [ -n "${BINARY:-}" ]; then
  mkdir -p "${BINARY%/*}"
  if [ -x "$BINARY" ] && [ -r "$MARK" ]; then
    read -r sum <"$MARK" || :
    size=$(wc -c <"$BINARY")
    echo "${sum%% *} $((size))"
  fi
fi
