# Prepares a builder of native images in the folder "$0": Oracle's builder from Maven, on a copy of a JDK 25 with JVMCI.
# $1: the kit beside the checkout. $2: the JDK.
# The builder links a JDK's native code statically. No package has that code as archives, so it is compiled from
# Debian's source of the same version.
set -euo pipefail
[ -e "$0/whole" ] && exit
rm -rf "$0"
mkdir -p "$0"/{jars,up,mods,cl,out,objects,sources,clib/include}
cd "$0"
cp "$1/builder-pom.xml" pom.xml
mvn -q -B dependency:copy-dependencies -DoutputDirectory="$PWD/jars"
for jar in jars/*; do
    case $jar in
        */compiler-*) cp "$jar" up/ ;;
        *) cp "$jar" mods/ ;;
    esac
done

cp -a "$2" jdk
mkdir -p jdk/lib/svm/builder/lib jdk/hdr jdk/obj
include=(-I jdk/include -I jdk/include/linux -I clib/include -I "$1/stubs")
gcc -O2 -shared -fPIC "${include[@]}" -o jdk/lib/svm/builder/lib/libreporterchelper.so "$1/stubs/rep.c"
jdk/bin/javac -d objects "$1/GenArgs.java"
jdk/bin/java -cp objects GenArgs jars exports.args

# The version of the JDK, as Debian's source has it: 25.0.3+9-LTS is 25.0.3+9.
version=$(sed -nE 's/^JAVA_RUNTIME_VERSION="([0-9.+]+).*/\1/p' jdk/release)
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Identifier: Packages' 'Label: Debian' | head -n 1)
[ "$mirror" ] || { echo "apt-get has no lists: apt-get update"; exit 1; }
curl -fsS --retry 3 -o source.tar.xz "${mirror%/}/pool/main/o/openjdk-25/openjdk-25_$version.orig.tar.xz"
mkdir openjdk-25-src
modules=(java.base jdk.net java.management jdk.management)
tar xJf source.tar.xz -C openjdk-25-src --strip-components=1 --wildcards '*/src/hotspot/share/include/*' \
    '*/src/hotspot/os/posix/include/*' "${modules[@]/#/*/src/}"
rm source.tar.xz
(cd sources && unzip -q ../jdk/lib/src.zip "${modules[@]/%//*}")
for module in "${modules[@]}"; do
    # Headers of JNI, for the classes with native methods or with constants for native code.
    grep -rlE '\bnative\b[^;]*\(|@Native' "sources/$module" --include='*.java' >classes
    jdk/bin/javac -nowarn -proc:none --patch-module "$module=sources/$module" \
        -h jdk/hdr -d "objects/$module" @classes 2>log || { cat log; exit 1; }
done
NI_HOME=$PWD JDK25=$2 python3 "$1/build-static-jdk-libs.py"
cp jdk/obj/*.a clib/
cp "$1"/stubs/*.h clib/include/
for library in libchelper libjvm; do
    gcc -O2 -fPIC -w "${include[@]}" -c "$1/stubs/$library.c" -o "objects/$library.o"
done
ar rcs clib/liblibchelper.a objects/libchelper.o
ar rcs clib/libjvm.a objects/libjvm.o
# The builder needs this archive, but none of its contents.
echo 'int svm_container_none;' | gcc -x c -c - -o objects/container.o
ar rcs clib/libsvm_container.a objects/container.o
rm -rf objects sources openjdk-25-src classes log
touch whole
