#!/usr/bin/env bash
# Builds kube-apiserver and kube-scheduler from Debian's source package kubernetes (1.20, Debian 12) into the folder $1,
# as its debian/rules do, and installs etcd: Debian ships the client alone. Eight minutes on 2 cores, 2 GB on the way.
set -euo pipefail
folder=$1
[ -x "$folder/kube-apiserver" ] && [ -x "$folder/kube-scheduler" ] && command -v etcd >/dev/null && exit 0

sources=/etc/apt/sources.list.d
if [ -f "$sources/debian.sources" ]; then
    sed 's/^Types: deb$/Types: deb-src/' "$sources/debian.sources" >"$sources/muster-tests-source.sources"
else
    sed -n 's/^deb /deb-src /p' /etc/apt/sources.list >"$sources/muster-tests-source.list"
fi
apt-get update -qq
RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    etcd-server golang-1.19-go dpkg-dev rsync make gcc libc6-dev

build=$(mktemp -d /var/tmp/muster-kubernetes-XXXXXX)
trap 'rm -rf "$build"' EXIT
cd "$build"
apt-get source -qq --download-only kubernetes
dpkg-source --no-check -x ./*.dsc source >/dev/null
cd source
mkdir -p .go/src/k8s.io "$build/home"
ln -s ../../.. .go/src/k8s.io/kubernetes
PATH=/usr/lib/go-1.19/bin:$PATH GOPATH=$PWD/.go CGO_ENABLED=0 HOME=$build/home \
    make -s WHAT="cmd/kube-apiserver cmd/kube-scheduler"
mkdir -p "$folder"
cp -L _output/bin/kube-apiserver _output/bin/kube-scheduler "$folder"
